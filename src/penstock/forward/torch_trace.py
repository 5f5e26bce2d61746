"""A model in torch operations, run layer by layer for one prompt. See `model_trace`."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.inputs import gather
from penstock.forward.memory import CacheSize
from penstock.forward.model_trace import MAX_TOKENS, TracedLayer, attention_probabilities
from penstock.forward.slot_tensors import SlotTensors
from penstock.forward.torch_loading import allocate_pages
from penstock.kernels.arrays import Array
from penstock.kernels.interface import Batch, BlockMap, Pages
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import Decoder
from penstock.model.layers.step import LayerStep
from penstock.model.load_dense import TORCH_DTYPES

BLOCK = 16  # tokens


class _TappedOperations(TorchOperations):
    """Keeps the probabilities of the last attention, for a batch of one row."""

    attention_of_layer: Array | None = None

    def attention(
        self, q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, *, scale: float, window: int, softcap: float
    ) -> Tensor:
        keys = pages.keys.flatten(0, 1)[block_map.targets]
        self.attention_of_layer = attention_probabilities(
            q.float().numpy(), keys.float().numpy(), scale=scale, window=window, softcap=softcap
        )
        return super().attention(q, pages, block_map, batch, scale=scale, window=window, softcap=softcap)


class TorchTracer:
    """Implements `ModelTracer`."""

    def __init__(self, model: Decoder) -> None:
        spec, dtype, device = model.spec, TORCH_DTYPES[model.embedding.dtype], torch.device("cpu")
        blocks = 1 + -(-MAX_TOKENS // BLOCK)  # block 0 is never used
        token_bytes = 2 * spec.num_kv_heads * spec.head_dim * dtype.itemsize
        sizes = tuple(len(group.layers) * token_bytes * BLOCK for group in spec.cache_groups)
        self._pages = allocate_pages(spec, CacheSize(BLOCK, (blocks,) * len(sizes), sizes, MAX_TOKENS), dtype, device)
        self._slots = SlotTensors(1, MAX_TOKENS, BLOCK, len(sizes), device)
        for table in self._slots.tables:
            table[0, : blocks - 1] = torch.arange(1, blocks, dtype=table.dtype)
        self._model = model

    @torch.inference_mode()
    def layers(self, tokens: list[int], position: int) -> Iterator[TracedLayer]:
        model, ops = self._model, _TappedOperations()
        self._slots.tokens[0, : len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
        batch = gather([Row(0, 0, len(tokens), 1)], self._slots)

        def traced(x: Tensor) -> TracedLayer:
            normed = ops.norm(x[position : position + 1], model.norm)
            logits = ops.logits(normed, model.head, model.spec.logit_softcap)
            return TracedLayer(x.float().clone().numpy(), ops.attention_of_layer, logits[0].float().numpy())

        x = ops.embed(batch.tokens, model.embedding, model.embedding_scale)
        yield traced(x)
        for layer, pages in zip(model.layers, self._pages, strict=True):
            x = layer.forward(ops, x, LayerStep(batch, pages, None))
            yield traced(x)
