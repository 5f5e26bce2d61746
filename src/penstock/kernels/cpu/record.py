"""A model's wiring recorded as a list of native operations.

`ProgramRecorder` implements `Operations` over values that have no numbers yet. What it fuses on the way:

    norm, gate, attention      leave their result quantized too, if a product reads it that way, and no floats that
                               nobody reads
    x + norm, then its norm    are one pass
    attention[wanted]          is made of the wanted rows alone
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from penstock.kernels.arrays import Array
from penstock.kernels.cpu.buffers import Op, Value, drop_unread, native, place
from penstock.kernels.cpu.packed import BLOCK, PackedMatrix
from penstock.kernels.cpu.program import LOGITS, NativePages, NativeRotation, OpKind, Recording
from penstock.kernels.interface import (
    Batch,
    BlockMap,
    HeadNorms,
    Linear,
    Norm,
    Operations,
    Pages,
    Rotary,
    UnreducedProduct,
    as_array,
)
from penstock.kernels.low_rank import EMBEDDING, HEAD, LowRank
from penstock.kernels.weight import Weight

if TYPE_CHECKING:
    from torch import Tensor

TOKENS, WANTED = 0, 1  # which rows a value has, as in native/program.h
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
QUANTIZED_FLOATS = 14  # of a block: 56 bytes


class Recordable(Protocol):
    """What `record` reads of a model."""

    head: Weight

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor: ...


class Tapped(Protocol):
    """A `Recordable` that shows its residual stream before each layer."""

    def forward(
        self, ops: Operations, batch: Batch, pages: Sequence[Pages], tap: Callable[[int, Tensor], None]
    ) -> Tensor: ...


def record(
    model: Recordable,
    pages: Sequence[Pages],
    *,
    groups: int,
    head_dim: int,
    softcap: float,
    wanted_only: bool,
    taps: Sequence[int] = (),
    adapted: bool = False,
) -> Recording:
    """The model up to the drawn token. `wanted_only`: hidden states of `Batch.logits_indices` alone, all that a step
    needs that only draws tokens; otherwise hidden states of all tokens, and logits of the wanted ones. `taps`: layers
    before which the residual stream is kept, of all tokens. `adapted`: with the low-rank deltas of adapters."""
    recorder = ProgramRecorder(head_dim, adapted)
    tapped: dict[int, Value] = {}

    def tap(layer: int, x: Tensor) -> None:
        if layer in taps:
            tapped[layer] = recorder.copy(_value(x))

    batch = recorder.batch(groups, wanted_only)
    if taps:
        hidden = _value(cast(Tapped, model).forward(recorder, batch, pages, tap))
    else:
        hidden = _value(model.forward(recorder, batch, pages))
    body = len(recorder.ops)
    recorder.head(hidden, model.head, softcap)
    return recorder.recording(hidden, body, model.head.shape[0], [tapped[layer] for layer in taps])


def record_network(
    forward: Callable[[ProgramRecorder, Batch, Tensor], Tensor], *, width: int, head_dim: int
) -> Recording:
    """A network that reads inputs [tokens, width] beside the tokens, up to its hidden states of `Batch.logits_indices`:
    draws none."""
    recorder = ProgramRecorder(head_dim)
    hidden = _value(forward(recorder, recorder.batch(1, True), recorder.input(width)))
    return recorder.recording(hidden, len(recorder.ops), 0)


def record_head(
    forward: Callable[[ProgramRecorder, Tensor], Tensor],
    weight: Weight,
    places: Array | None,
    *,
    width: int,
    vocab: int,
) -> Recording:
    """From inputs [tokens, width] to drawn tokens. `places` [rows of the weight]: the token ids of the logits."""
    recorder = ProgramRecorder(BLOCK)
    hidden = _value(forward(recorder, recorder.input(width)))
    body = len(recorder.ops)
    recorder.head(hidden, weight, 0.0, places, vocab)
    return recorder.recording(hidden, body, vocab)


class ProgramRecorder:
    """Implements `interface.Operations`."""

    def __init__(self, head_dim: int, adapted: bool = False) -> None:
        self.ops: list[Op] = []
        self._head_dim = head_dim
        self._adapted = adapted
        self._references: list[object] = []
        self._maps: list[BlockMap] = []
        # By the id of a value: what the next norm of it adds to it first, and the norm that gave that.
        self._pending: dict[int, tuple[Value, Norm]] = {}

    def batch(self, groups: int, wanted_only: bool) -> Batch:
        """A step's inputs, without numbers."""
        tokens = _tensor(self._value(TOKENS, 1))
        self._maps = [BlockMap(tokens, tokens) for _ in range(groups)]
        indices = tokens if wanted_only else None
        return Batch(tokens, tokens, tokens, tokens, tuple(self._maps), 0, 0, [], [], indices)

    def embed(self, tokens: Tensor, table: Weight, scale: float) -> Tensor:
        matrix = self._matrix(table)
        output = self._value(TOKENS, matrix.shape[1])
        self._add(OpKind.EMBED, output, scale=scale, weight=matrix.address)
        if self._adapted:
            self._add(OpKind.LOW_RANK_EMBED, output, window=EMBEDDING.site, scale=scale)
        return _tensor(output)

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        normed = self._norm(_value(x), norm)
        if onto is None:
            return _tensor(normed)
        self._add_pending(_value(onto))
        self._pending[id(onto)] = (normed, norm)
        return onto

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        weight, bias, norm, activation, reduce, delta = linear
        if reduce:
            raise UnreducedProduct
        if activation is not None and onto is not None:
            raise NotImplementedError("the native program has no operation that adds a gated product")
        source, matrix = _value(x), self._matrix(weight)
        if norm is None:
            self._add_pending(source)
        else:
            source = self._norm(source, norm)
        output = self._value(source.rows, matrix.shape[0]) if onto is None else _value(onto)
        self._linear(source, matrix, bias, output, adds=onto is not None)
        if delta is not None and self._adapted:
            self._low_rank(source, delta, output)
        output.quantized = None
        if activation is None:
            return _tensor(output)
        gated = self._value(output.rows, output.width // 2)
        self._add(OpKind.GATE, gated, output, option=ACTIVATIONS[activation])
        return _tensor(gated)

    def rotate_store(
        self,
        qkv: Tensor,
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        rotary: Rotary,
        norms: HeadNorms | None,
    ) -> Tensor:
        q_norm, k_norm, eps = norms or (None, None, 0.0)
        table = self._address(rotary.table)
        rotation = NativeRotation(table, rotary.dim, self._address(q_norm), self._address(k_norm), eps)
        source = _value(qkv)
        op = self._add(OpKind.ROTATE_STORE, None, source, pages=self._pages(pages), rotation=rotation)
        op.fields["group"] = self._group(block_map)
        op.width = source.width
        return qkv  # rotated in place; the attention finds its q in it

    def attention(
        self, q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, *, scale: float, window: int, softcap: float
    ) -> Tensor:
        heads = _value(q).width // self._head_dim - 2 * pages.values.shape[1]
        output = self._value(TOKENS, heads * self._head_dim)
        op = self._add(OpKind.ATTENTION, output, _value(q), pages=self._pages(pages), scale=scale, softcap=softcap)
        op.fields |= {"window": window, "group": self._group(block_map)}
        return _tensor(output)

    def logits(self, x: Tensor, weight: Weight, softcap: float, out: Tensor | None = None) -> Tensor:
        raise NotImplementedError("the head is recorded by `head`")

    def input(self, width: int) -> Tensor:
        """[tokens, width] that the caller of a run gives."""
        output = self._value(TOKENS, width)
        self._add(OpKind.INPUT, output)
        return _tensor(output)

    def copy(self, source: Value) -> Value:
        """It as it is now; later sums do not change it."""
        self._add_pending(source)
        output = self._value(source.rows, source.width)
        self._add(OpKind.COPY, output, source)
        return output

    def add(self, x: Tensor, onto: Tensor) -> Tensor:
        """`onto` with x added, in place."""
        self._add(OpKind.COPY, _value(onto), _value(x), option=1)
        _value(onto).quantized = None
        return onto

    def head(
        self, hidden: Value, weight: Weight, softcap: float, places: Array | None = None, vocab: int | None = None
    ) -> None:
        """`places` [rows of the weight]: the token ids of the logits, of `vocab`; None: all, in order."""
        source = self._pick(hidden) if hidden.rows == TOKENS else hidden
        logits = Value(self, WANTED, vocab or weight.shape[0], 0, buffer=LOGITS)
        if places is None:
            self._linear(source, self._matrix(weight), None, logits)
            if self._adapted:
                self._low_rank(source, HEAD, logits)
        else:
            some = self._value(WANTED, weight.shape[0])
            self._linear(source, self._matrix(weight), None, some)
            indices = np.ascontiguousarray(places, dtype=np.int32)
            self._references.append(indices)
            self._add(OpKind.SCATTER, logits, some, weight=indices.ctypes.data, window=some.width)
        if softcap:
            self._add(OpKind.CAP, logits, scale=softcap)
        self._add(OpKind.DRAW, logits)

    def pick(self, source: Value) -> Value:
        """The wanted rows of a value of which no others are read."""
        if source.maker is self.ops[-1] and source.maker.kind is OpKind.ATTENTION:
            source.maker.rows = source.rows = WANTED
            return source
        self._add_pending(source)
        return self._pick(source)

    def settle(self, x: Tensor) -> int:
        """Nothing is pending of x from here on. Gives the number of operations so far."""
        self._add_pending(_value(x))
        return len(self.ops)

    def recording(self, hidden: Value, head: int, vocab: int, taps: Sequence[Value] = ()) -> Recording:
        assert not self._pending, "a sum that is never read"
        drop_unread(self.ops, hidden)
        offsets, row_floats = place(self.ops, (hidden, *taps))
        return Recording(
            ops=[native(op) for op in self.ops],
            head=head,
            hidden=hidden.buffer,
            hidden_size=hidden.width,
            vocab=vocab,
            offsets=offsets,
            row_floats=row_floats,
            kept=self._references,
            taps=tuple(tap.buffer for tap in taps),
        )

    def _pick(self, source: Value) -> Value:
        output = self._value(WANTED, source.width)
        self._add(OpKind.PICK, output, source)
        return output

    def _norm(self, x: Value, norm: Norm) -> Value:
        output = self._value(x.rows, x.width)
        op = self._add(OpKind.NORM, output, x, scale=norm.eps, weight=self._address(norm.weight))
        op.added, _ = self._pending.pop(id(x), (None, None))
        return output

    def _add_pending(self, x: Value) -> None:
        """Add to x what is pending, for a reader that is not a norm. Only the native norm adds two values, so this is a
        norm whose result is unused. Layers that begin with a norm never need it."""
        if id(x) in self._pending:
            self._norm(x, self._pending[id(x)][1])

    def _linear(
        self, source: Value, matrix: PackedMatrix, bias: Tensor | None, output: Value, *, adds: bool = False
    ) -> None:
        quantized = self._quantize(source) if matrix.reads_quantized else None
        op = self._add(OpKind.LINEAR, output, weight=matrix.address, bias=self._address(bias))
        op.input, op.quantized = (source if matrix.reads_float else None), quantized
        op.fields["option"] = int(adds)

    def _low_rank(self, source: Value, delta: LowRank, output: Value) -> None:
        parts = len(delta.projections)
        self._add(OpKind.LOW_RANK, output, source, window=delta.site, option=parts)
        self._add(OpKind.LOW_RANK_END, output, window=delta.site, option=parts)

    def _quantize(self, source: Value) -> Value:
        if source.quantized is None:
            made = self._value(source.rows, source.width, -(-source.width // BLOCK) * QUANTIZED_FLOATS)
            source.quantized, maker = made, source.maker
            by_maker = maker is not None and (
                maker.kind in (OpKind.NORM, OpKind.GATE)
                or (maker.kind is OpKind.ATTENTION and self._head_dim % BLOCK == 0)
            )
            if maker is not None and by_maker:
                maker.quantized = made
            else:
                self._add(OpKind.QUANTIZE, None, source).quantized = made
        return source.quantized

    def _add(self, kind: OpKind, output: Value | None, source: Value | None = None, **fields: Any) -> Op:
        shaped = output or source
        assert shaped is not None
        op = Op(kind, shaped.rows, shaped.width, source, output=output, fields=fields)
        if output is not None:
            output.maker = op
        self.ops.append(op)
        return op

    def _value(self, rows: int, width: int, floats: int | None = None) -> Value:
        return Value(self, rows, width, width if floats is None else floats)

    def _matrix(self, weight: Weight) -> PackedMatrix:
        matrix = weight.packed
        self._references.append(matrix)
        return matrix

    def _address(self, tensor: Tensor | None) -> int | None:
        if tensor is None:
            return None
        array = np.ascontiguousarray(as_array(tensor), dtype=np.float32)
        self._references.append(array)
        return array.ctypes.data

    def _pages(self, pages: Pages) -> NativePages:
        self._references.append(pages)
        parts = (pages.keys, pages.values, pages.key_scales, pages.value_scales)
        addresses = (None if part is None else as_array(part).ctypes.data for part in parts)
        return NativePages(*addresses, as_array(pages.keys).strides[0])

    def _group(self, block_map: BlockMap) -> int:
        return next(index for index, known in enumerate(self._maps) if known is block_map)


def _value(tensor: Tensor) -> Value:
    return cast(Value, cast(object, tensor))


def _tensor(value: Value) -> Tensor:
    return cast("Tensor", cast(object, value))
