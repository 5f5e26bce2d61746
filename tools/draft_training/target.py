"""The target model in floating point, layer by layer: hidden states as a head reads them at serving time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.kernels.arrays import to_float32
from penstock.kernels.interface import Batch, BlockMap, Pages
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import open_source, registry
from penstock.model.layers.step import LayerStep
from penstock.model.load_dense import load_dense
from penstock.model.weights.map import Parameter
from penstock.model.weights.names import EMBEDDING, HEAD, HF_LAYER, LAYER
from penstock.store.files import ModelFiles
from penstock.store.spec import ModelSpec

BLOCK = 16  # tokens of a KV block


class Target:
    """`taps` are layers: the residual stream before layer n, as EAGLE-3 counts them."""

    def __init__(
        self,
        files: ModelFiles,
        *,
        taps: Sequence[int],
        context: int,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.spec: ModelSpec = files.spec
        self.taps, self.context, self.device, self._dtype = tuple(taps), context, device, dtype
        source = open_source(files.weights, files.format)
        self._model = load_dense(files.spec, source, dtype=dtype, device=device, context=context)
        self._ops = TorchOperations()
        self._source = source
        self.embedding = self._read(EMBEDDING)["model.embed_tokens.weight"]  # [vocab, hidden]
        self.head = self.embedding if self.spec.tied else self._read(HEAD)["lm_head.weight"]
        self.norm = self._model.norm.weight
        self._pages: list[Pages] = []

    @torch.inference_mode()
    def hidden_states(self, sequences: Sequence[Sequence[int]]) -> list[Tensor]:
        """For each sequence [tokens, 1 + taps, hidden]: after the final norm, and at the taps."""
        batch = self._batch(sequences)
        pages = self._pages_for(len(sequences) * -(-self.context // BLOCK) + 1)
        x = self._ops.embed(batch.tokens, self._model.embedding, self._model.embedding_scale)
        seen: dict[int, Tensor] = {}
        for number, (layer, layer_pages) in enumerate(zip(self._model.layers, pages, strict=True)):
            if number in self.taps:
                seen[number] = x.clone()
            x = layer.forward(self._ops, x, LayerStep(batch, layer_pages))
        states = torch.stack([self._ops.norm(x, self._model.norm), *(seen[tap] for tap in self.taps)], dim=1)
        return [states[begin:end] for begin, end in zip(batch.host_starts, batch.host_starts[1:], strict=False)]

    def layer_tensors(self, number: int) -> dict[str, Tensor]:
        """Parameters of one layer, by their names in Hugging Face checkpoints, without the layer."""
        parameters = registry.architecture(self.spec.architecture).weight_map.parameters
        found: dict[str, Tensor] = {}
        for parameter in parameters:
            if LAYER in parameter.name and parameter.exists(self.spec):
                found.update(self._read(parameter, number))
        return {name.removeprefix(HF_LAYER.format(layer=number)): tensor for name, tensor in found.items()}

    def _read(self, parameter: Parameter, number: int = 0) -> dict[str, Tensor]:
        shapes = self._source.shapes
        assert shapes is not None
        found: dict[str, Tensor] = {}
        for part in parameter.parts:
            name = part.name(self._source.format).format(layer=number)
            values, transform = self._source.read(name, shapes[name]), part.transform(self._source.format)
            values = to_float32(values if transform is None else transform(values, self.spec))
            found[part.hf.format(layer=number)] = torch.from_numpy(np.array(values)).to(self.device)
        return found

    def _pages_for(self, blocks: int) -> list[Pages]:
        shape = (blocks, BLOCK, self.spec.num_kv_heads, self.spec.head_dim)
        if not self._pages or self._pages[0].keys.shape[0] < blocks:
            self._pages = [
                Pages(*(torch.zeros(shape, dtype=self._dtype, device=self.device) for _ in ("keys", "values")))
                for _ in range(self.spec.num_layers)
            ]
        return self._pages

    def _batch(self, sequences: Sequence[Sequence[int]]) -> Batch:
        """Sequences of at least two tokens, each in blocks of its own."""
        lengths = [len(tokens) for tokens in sequences]
        starts = [sum(lengths[:place]) for place in range(len(lengths) + 1)]
        per_sequence = -(-self.context // BLOCK)
        tables = [[1 + place * per_sequence + block for block in range(per_sequence)] for place in range(len(lengths))]
        targets = [
            (1 + place * per_sequence) * BLOCK + at for place, length in enumerate(lengths) for at in range(length)
        ]

        def tensor(values: list[int] | list[list[int]], dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.tensor(values, dtype=dtype, device=self.device)

        block_map = BlockMap(tensor(tables, torch.int32), tensor(targets))
        return Batch(
            tokens=tensor([token for tokens in sequences for token in tokens]),
            positions=tensor([at for length in lengths for at in range(length)]),
            starts=tensor(starts, torch.int32),
            lengths=tensor(lengths, torch.int32),
            maps=(block_map,) * len(self.spec.cache_groups),
            num_rows=len(lengths),
            num_single=0,
            host_starts=starts,
            host_lengths=lengths,
        )
