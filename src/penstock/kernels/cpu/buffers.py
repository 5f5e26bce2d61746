"""Values and operations of a recording, and the buffers that values get."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from penstock.kernels.cpu.program import NO_BUFFER, NativeOp, OpKind

if TYPE_CHECKING:
    from penstock.kernels.cpu.record import ProgramRecorder

ALIGNMENT = 16  # floats


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


def drop_unread(ops: Sequence[Op], hidden: Value) -> None:
    """Norms, gates and attention whose result is only read quantized need no buffer for its floats."""
    uses = Counter(id(value) for op in ops for value in op.values)
    for op in ops:
        makes_both = op.kind in (OpKind.NORM, OpKind.GATE, OpKind.ATTENTION) and op.quantized is not None
        if makes_both and op.output is not hidden:
            op.output = op.output if uses[id(op.output)] > 1 else None


def place(ops: Sequence[Op], results: Sequence[Value]) -> tuple[list[int], int]:
    """Assign each value a buffer. Buffers overlap where their values are never live at the same time. Gives where they
    begin and the total size, in floats per token. `results` are read after the run. A gate and the product before it
    may be computed share by share, so what the product reads lives until the gate has written."""
    last: dict[int, int] = {}
    for number, op in enumerate(ops):
        gated = op.kind is OpKind.LINEAR and number + 1 < len(ops) and ops[number + 1].kind is OpKind.GATE
        last |= {id(value): number + gated for value in op.values}
    last |= {id(value): len(ops) for value in results}
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


def native(op: Op) -> NativeOp:
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
