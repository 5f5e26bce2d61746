"""A model's wiring recorded as a list of native operations.

`ProgramRecorder` implements `Operations` over values that have no numbers yet. What it fuses on the way:

    norm, gate, attention      leave their result quantized too, if a product reads it that way, and of norm and gate
                               no floats that nobody reads
    x + norm, then its norm    are one pass
    attention[wanted]          is made of the wanted rows alone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from penstock.kernels.cpu.packed import BLOCK, PackedMatrix
from penstock.kernels.cpu.program import LOGITS, NO_BUFFER, NativeOp, NativePages, NativeRotation, OpKind, Recording
from penstock.kernels.interface import (
    Batch,
    BlockMap,
    HeadNorms,
    Linear,
    Norm,
    Operations,
    Pages,
    Rotary,
    as_array,
)
from penstock.kernels.weight import Weight

if TYPE_CHECKING:
    from torch import Tensor

TOKENS, WANTED = 0, 1  # which rows a value has, as in native/program.h
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1}
ALIGNMENT = 16  # floats
QUANTIZED_FLOATS = 14  # of a block: 56 bytes


class Recordable(Protocol):
    """What `record` reads of a model."""

    head: Weight

    def forward(self, ops: Operations, batch: Batch, pages: Sequence[Pages]) -> Tensor: ...


@dataclass(slots=True, eq=False)
class Value:
    """Rows of `floats` numbers in a buffer that is assigned later. Stands for a Tensor in the model's code."""

    recorder: ProgramRecorder
    rows: int
    width: int
    floats: int
    maker: Op | None = None
    quantized: Value | None = None
    buffer: int = NO_BUFFER

    def __getitem__(self, wanted: Value) -> Value:
        return self.recorder.pick(self)


@dataclass(slots=True, eq=False)
class Op:
    """A native operation whose buffers are assigned later."""

    kind: OpKind
    rows: int
    width: int
    input: Value | None = None
    added: Value | None = None
    output: Value | None = None
    quantized: Value | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    @property
    def values(self) -> list[Value]:
        return [value for value in (self.input, self.added, self.output, self.quantized) if value is not None]


def record(
    model: Recordable, pages: Sequence[Pages], *, groups: int, head_dim: int, softcap: float, wanted_only: bool
) -> Recording:
    """The model up to the drawn token. `wanted_only`: hidden states of `Batch.logits_indices` alone, all that a step
    needs that only draws tokens; otherwise hidden states of all tokens, and logits of the wanted ones."""
    recorder = ProgramRecorder(head_dim)
    hidden = _value(model.forward(recorder, recorder.batch(groups, wanted_only), pages))
    body = len(recorder.ops)
    recorder.head(hidden, model.head, softcap)
    return recorder.recording(hidden, body, model.head.shape[0])


class ProgramRecorder:
    """Implements `interface.Operations`."""

    def __init__(self, head_dim: int) -> None:
        self.ops: list[Op] = []
        self._head_dim = head_dim
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
        return _tensor(output)

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        normed = self._norm(_value(x), norm)
        if onto is None:
            return _tensor(normed)
        self._add_pending(_value(onto))
        self._pending[id(onto)] = (normed, norm)
        return onto

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        weight, bias, norm, activation = linear
        if activation is not None and onto is not None:
            raise NotImplementedError("the native program has no operation that adds a gated product")
        source, matrix = _value(x), self._matrix(weight)
        if norm is None:
            self._add_pending(source)
        else:
            source = self._norm(source, norm)
        output = self._value(source.rows, matrix.shape[0]) if onto is None else _value(onto)
        self._linear(source, matrix, bias, output, adds=onto is not None)
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

    def head(self, hidden: Value, weight: Weight, softcap: float) -> None:
        source = self._pick(hidden) if hidden.rows == TOKENS else hidden
        logits = Value(self, WANTED, weight.shape[0], 0, buffer=LOGITS)
        self._linear(source, self._matrix(weight), None, logits)
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

    def recording(self, hidden: Value, head: int, vocab: int) -> Recording:
        assert not self._pending, "a sum that is never read"
        _drop_unread(self.ops, hidden)
        offsets, row_floats = _place(self.ops, hidden)
        return Recording(
            ops=[_native(op) for op in self.ops],
            head=head,
            hidden=hidden.buffer,
            hidden_size=hidden.width,
            vocab=vocab,
            offsets=offsets,
            row_floats=row_floats,
            kept=self._references,
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


def _drop_unread(ops: Sequence[Op], hidden: Value) -> None:
    """Norms and gates whose result is only read quantized need no buffer for its floats."""
    uses = Counter(id(value) for op in ops for value in op.values)
    for op in ops:
        if op.kind in (OpKind.NORM, OpKind.GATE) and op.quantized is not None and op.output is not hidden:
            op.output = op.output if uses[id(op.output)] > 1 else None


def _place(ops: Sequence[Op], hidden: Value) -> tuple[list[int], int]:
    """Assign each value a buffer. Buffers overlap where their values are never live at the same time. Gives where they
    begin and the total size, in floats per token."""
    last: dict[int, int] = {id(value): number for number, op in enumerate(ops) for value in op.values}
    last[id(hidden)] = len(ops)  # read after the run
    offsets: list[int] = []
    living: list[tuple[int, int, int]] = []  # begin, end, last use
    most = 0
    for number, op in enumerate(ops):
        living = [piece for piece in living if piece[2] >= number]
        for value in op.values:
            if value.buffer != NO_BUFFER:
                continue
            size = -(-value.floats // ALIGNMENT) * ALIGNMENT
            begin = 0
            for other_begin, other_end, _ in sorted(living):
                if begin + size <= other_begin:
                    break
                begin = max(begin, other_end)
            living.append((begin, begin + size, last[id(value)]))
            most = max(most, begin + size)
            value.buffer = len(offsets)
            offsets.append(begin)
    return offsets, most


def _native(op: Op) -> NativeOp:
    def buffer(value: Value | None) -> int:
        return NO_BUFFER if value is None else value.buffer

    return NativeOp(
        kind=op.kind,
        rows=op.rows,
        width=op.width,
        input=buffer(op.input),
        added=buffer(op.added),
        output=buffer(op.output),
        quantized=buffer(op.quantized),
        **op.fields,
    )


def _value(tensor: Tensor) -> Value:
    return cast(Value, cast(object, tensor))


def _tensor(value: Value) -> Tensor:
    return cast("Tensor", cast(object, value))
