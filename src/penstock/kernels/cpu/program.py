"""Recorded models, as native code runs them: one call per step. The structs mirror native/program.h."""

from __future__ import annotations

import ctypes
import weakref
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np

from penstock.kernels.arrays import Array
from penstock.kernels.cpu import library
from penstock.kernels.cpu.draw_table import DrawTable, LogprobTable
from penstock.kernels.interface import Pages, as_array

NO_BUFFER = -1
LOGITS = -2


class OpKind(IntEnum):
    EMBED = 0
    NORM = 1
    QUANTIZE = 2
    LINEAR = 3
    ROTATE_STORE = 4
    ATTENTION = 5
    GATE = 6
    PICK = 7
    CAP = 8
    DRAW = 9
    INPUT = 10
    COPY = 11
    SCATTER = 12
    LOW_RANK = 13
    LOW_RANK_END = 14
    LOW_RANK_EMBED = 15


class PageType(IntEnum):
    F32 = 0
    F16 = 1
    I8 = 2
    I4 = 3


PAGE_TYPES = {"float32": PageType.F32, "float16": PageType.F16, "int8": PageType.I8, "uint8": PageType.I4}


def page_types(pages: Sequence[Pages]) -> tuple[PageType, PageType]:
    """Of the keys and of the values; all layers have the same."""
    keys, values = as_array(pages[0].keys), as_array(pages[0].values)
    return PAGE_TYPES[keys.dtype.name], PAGE_TYPES[values.dtype.name]


class NativePages(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("keys", "values", "key_scales", "value_scales")),
        ("block_bytes", ctypes.c_int64),
    )


class NativeRotation(ctypes.Structure):
    _fields_ = (
        ("table", ctypes.c_void_p),
        ("dim", ctypes.c_int64),
        ("q_norm", ctypes.c_void_p),
        ("k_norm", ctypes.c_void_p),
        ("eps", ctypes.c_float),
    )


class NativeOp(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int32) for name in ("kind", "rows", "input", "added", "output", "quantized")),
        *((name, ctypes.c_int32) for name in ("option", "group")),
        ("width", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
        ("softcap", ctypes.c_float),
        ("weight", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("pages", NativePages),
        ("rotation", NativeRotation),
    )


class NativeHeads(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("heads", "kv_heads", "head_dim", "block_size")),
        ("key_type", ctypes.c_int32),
        ("value_type", ctypes.c_int32),
    )


class NativeLayout(ctypes.Structure):
    _fields_ = (
        ("heads", NativeHeads),
        ("slot_tokens", ctypes.c_void_p),
        ("token_stride", ctypes.c_int64),
        ("tables", ctypes.POINTER(ctypes.c_void_p)),
        ("table_stride", ctypes.c_int64),
        ("num_groups", ctypes.c_int32),
        ("num_buffers", ctypes.c_int32),
        ("offsets", ctypes.POINTER(ctypes.c_int64)),
        ("row_floats", ctypes.c_int64),
        *((name, ctypes.c_int64) for name in ("max_tokens", "max_wanted", "vocab")),
    )


class NativeStep(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("rows", "wanted", "draws", "tables", "logprobs", "drawn", "kept")),
        ("inputs", ctypes.c_void_p),
        ("adapters", ctypes.c_void_p),
        *((name, ctypes.c_int32) for name in ("num_rows", "num_wanted", "first", "end")),
    )


@dataclass(frozen=True, slots=True)
class Recording:
    """A model as a flat list of operations. `head` is where what follows the hidden states begins."""

    ops: list[NativeOp]
    head: int
    hidden: int  # buffer of the hidden states
    hidden_size: int
    vocab: int
    offsets: list[int]  # of the buffers, in floats per token
    row_floats: int
    kept: list[object]  # what the operations point to
    taps: tuple[int, ...] = ()  # buffers of the residual stream before some layers, [tokens, hidden_size]


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the slots are and how the pages are made."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    page_types: tuple[PageType, PageType]  # of keys and values
    tokens: Array  # [slots, tokens] int32; may be a view of some columns
    tables: Sequence[Array]  # [groups], each [slots, blocks] int32
    max_tokens: int  # of a step
    max_wanted: int


class Pool:
    """A thread pool that runs programs; the thread that calls `run` is one of its threads."""

    def __init__(self, threads: int) -> None:
        loaded = library.load()
        assert loaded is not None, "the native library is not built"
        self.library = loaded
        self.address = loaded.penstock_pool_new(threads)
        weakref.finalize(self, loaded.penstock_pool_free, self.address)


class Program:
    """A recording bound to slots and threads, with the memory its values lie in."""

    def __init__(self, pool: Pool, recording: Recording, layout: Layout, beside: Program | None = None) -> None:
        """`beside`: one whose memory it shares, if that is large enough: a run of either overwrites the results of the
        other."""
        self.recording = recording
        self._pool, self._layout = pool, layout
        heads = NativeHeads(layout.heads, layout.kv_heads, layout.head_dim, layout.block_size, *layout.page_types)
        tables = (ctypes.c_void_p * len(layout.tables))(*(table.ctypes.data for table in layout.tables))
        offsets = (ctypes.c_int64 * len(recording.offsets))(*recording.offsets)
        native = NativeLayout(
            heads,
            layout.tokens.ctypes.data,
            layout.tokens.strides[0] // layout.tokens.itemsize,
            tables,
            layout.tables[0].shape[1],
            len(layout.tables),
            len(recording.offsets),
            offsets,
            recording.row_floats,
            layout.max_tokens,
            layout.max_wanted,
            recording.vocab,
        )
        ops = (NativeOp * len(recording.ops))(*recording.ops)
        other: int | None = None if beside is None else beside.address
        self.address: int = pool.library.penstock_program_new(
            pool.address, ctypes.addressof(native), ops, len(ops), other
        )
        weakref.finalize(self, _free, pool, self.address)
        self._run = pool.library.penstock_program_run
        self._drawn = np.empty(layout.max_wanted, dtype=np.int32)
        self._step = NativeStep(drawn=self._drawn.ctypes.data, end=len(recording.ops))
        self._step_at = ctypes.addressof(self._step)

    def run(
        self,
        rows: array[int],  # [rows, 4] int32: slot, start, count, draws
        *,
        wanted: array[int] | None = None,  # [n] int32 packed tokens; None: the last of each row, as many as it draws
        draws: DrawTable | None = None,  # [wanted]
        logprobs: LogprobTable | None = None,  # [wanted]: of the drawn tokens; without `draws` of those in the table
        first: int = 0,
        end: int | None = None,
        kept: array[int] | None = None,  # [rows] int32: rows have drafts; how many draws of each count is written here
        inputs: Array | None = None,  # [tokens, width] float32, of a program with an input
        adapters: array[int]
        | None = None,  # [rows] addresses of `low_rank.PackedAdapter`, 0 without; None: no row has one
    ) -> list[int]:
        """Operations from `first` on, up to `end`; gives the drawn tokens, of all draws."""
        step = self._step
        step.rows, step.num_rows = rows.buffer_info()[0], len(rows) // 4
        step.wanted, step.num_wanted = (None, 0) if wanted is None else wanted.buffer_info()
        step.draws, step.tables = (None, None) if draws is None else (draws.address, draws.slots.address)
        step.logprobs = None if logprobs is None else logprobs.address
        step.first, step.end = first, len(self.recording.ops) if end is None else end
        step.kept = None if kept is None else kept.buffer_info()[0]
        step.inputs = None if inputs is None else inputs.ctypes.data
        step.adapters = None if adapters is None else adapters.buffer_info()[0]
        if wrong := self._run(self.address, self._step_at):
            what = "tokens" if wrong == 1 else "logits"
            raise ValueError(f"a step has more {what} than there is room for")
        return [] if draws is None else self._drawn[: len(draws.table)].tolist()

    def hidden(self, rows: int) -> Array:
        """[rows, hidden] after a run, until the next."""
        return self.view(self.recording.hidden, rows, self.recording.hidden_size)

    def taps(self, rows: int) -> list[Array]:
        """[rows, hidden] each, after a run, until the next."""
        return [self.view(buffer, rows, self.recording.hidden_size) for buffer in self.recording.taps]

    def logits(self, rows: int) -> Array:
        """[rows, vocab] after a run, until the next."""
        return self.view(LOGITS, rows, self.recording.vocab)

    def profile(self, on: bool) -> dict[str, int]:
        """Nanoseconds by kind of operation so far. Timed apart, operations take a little longer."""
        spent = self._pool.library.penstock_program_profile(self.address, int(on))
        return {kind.name.lower(): spent[kind] for kind in OpKind}

    def view(self, buffer: int, rows: int, width: int) -> Array:
        """A buffer of the recording, as the operations so far have left it."""
        at = self._pool.library.penstock_program_buffer(self.address, buffer)
        values = (ctypes.c_float * (rows * width)).from_address(at)
        return np.frombuffer(memoryview(values), dtype=np.float32).reshape(rows, width)


def _free(pool: Pool, address: int) -> None:
    """Takes the pool so that it outlives its programs."""
    pool.library.penstock_program_free(address)
