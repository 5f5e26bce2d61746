"""The native program of a model, run layer by layer for one prompt. See `model_trace`."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, cast

from penstock.forward.memory import CacheSize
from penstock.forward.model_trace import MAX_TOKENS, TracedLayer, attention_probabilities
from penstock.forward.native_pages import allocate_native_pages
from penstock.forward.slot_arrays import SlotArrays
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.buffers import Value
from penstock.kernels.cpu.program import Layout, NativeOp, OpKind, Pool, Program, page_types
from penstock.kernels.cpu.record import ProgramRecorder, record
from penstock.kernels.interface import Batch, Operations, Pages, as_array
from penstock.model import Decoder
from penstock.model.layers.step import LayerStep
from penstock.store.kv_types import KvTypes

if TYPE_CHECKING:
    from torch import Tensor

BLOCK = 16  # tokens
FLOATS = KvTypes("float32", "float32")


class _RecordedByLayer:
    """A `Recordable` that notes where the operations of each layer end, and in which value the residual stream is."""

    def __init__(self, model: Decoder) -> None:
        self.head = model.head
        self._model = model
        self.ends: list[int] = []  # [layers + 1]: of the embedding, then of each layer
        self.residual: Value | None = None

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor:
        assert isinstance(ops, ProgramRecorder)
        model = self._model
        x = ops.embed(batch.tokens, model.embedding, model.embedding_scale)
        self.ends.append(ops.settle(x))
        for layer, layer_pages in zip(model.layers, pages, strict=True):
            x = layer.forward(ops, x, LayerStep(batch, layer_pages, None))
            self.ends.append(ops.settle(x))
        self.residual = cast(Value, cast(object, x))
        return ops.norm(x, model.norm)


class NativeTracer:
    """Implements `ModelTracer`, on the thread that calls it."""

    def __init__(self, model: Decoder) -> None:
        spec = self._spec = model.spec
        blocks = 1 + -(-MAX_TOKENS // BLOCK)  # block 0 is never used
        slots = SlotArrays(1, MAX_TOKENS, BLOCK, len(spec.cache_groups))
        for table in slots.tables:
            table[0, : blocks - 1] = range(1, blocks)
        self._tokens = slots.tokens
        self._pages = allocate_native_pages(spec, _cache_size(model, blocks), FLOATS)
        recorded = _RecordedByLayer(model)
        recording = record(
            recorded,
            self._pages,
            groups=len(spec.cache_groups),
            head_dim=spec.head_dim,
            softcap=spec.logit_softcap,
            wanted_only=False,
        )
        assert recorded.residual is not None
        self._ends, self._residual = recorded.ends, recorded.residual.buffer
        layout = Layout(
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            block_size=BLOCK,
            page_types=page_types(self._pages),
            tokens=slots.tokens,
            tables=slots.tables,
            max_tokens=MAX_TOKENS,
            max_wanted=1,
        )
        self._program = Program(Pool(1), recording, layout)

    def layers(self, tokens: list[int], position: int) -> Iterator[TracedLayer]:
        count, program = len(tokens), self._program
        self._tokens[0, :count] = tokens
        rows, wanted = array("i", [0, 0, count, 1]), array("i", [position])
        program.run(rows, wanted=wanted, end=self._ends[0])
        yield self._layer(rows, wanted, None)
        for number, (begin, end) in enumerate(zip(self._ends, self._ends[1:], strict=False)):
            at = next(at for at in range(begin, end) if program.recording.ops[at].kind == OpKind.ATTENTION)
            program.run(rows, wanted=wanted, first=begin, end=at)  # q is rotated, and keys are written
            attention = self._attention(program.recording.ops[at], number, count)
            program.run(rows, wanted=wanted, first=at, end=end)
            yield self._layer(rows, wanted, attention)

    def _layer(self, rows: array[int], wanted: array[int], attention: Array | None) -> TracedLayer:
        """The tail of the program, norm and head, reads the residual stream alone, so it can be run behind any layer.
        It may write over what it has read: the layers go on with a copy."""
        view = self._program.view(self._residual, rows[2], self._spec.hidden_size)
        residual = view.copy()
        self._program.run(rows, wanted=wanted, first=self._ends[-1])
        logits = self._program.logits(1)[0]
        view[:] = residual
        return TracedLayer(residual, attention, logits)

    def _attention(self, op: NativeOp, layer: int, count: int) -> Array:
        spec = self._spec
        heads, kv_heads, dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
        qkv = self._program.view(op.input, count, (heads + 2 * kv_heads) * dim)
        q = qkv[:, : heads * dim].reshape(count, heads, dim)
        pages = as_array(self._pages[layer].keys)[1:]  # [blocks, kv_heads, dim, block_size]
        k = pages.transpose(0, 3, 1, 2).reshape(-1, kv_heads, dim)[:count]
        return attention_probabilities(q, k, scale=op.scale, window=op.window, softcap=op.softcap)


def _cache_size(model: Decoder, blocks: int) -> CacheSize:
    spec = model.spec
    sizes = [spec.block_bytes(group, BLOCK, FLOATS) for group in spec.cache_groups]
    return CacheSize(BLOCK, (blocks,) * len(sizes), tuple(sizes), MAX_TOKENS)
