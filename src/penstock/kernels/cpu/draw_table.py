"""How rows of logits draw their tokens, in memory that native code reads. The structs mirror native/draw.h; sampling
parameters come from `kernels.sampling_layout`."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from penstock.kernels import sampling_layout
from penstock.kernels.arrays import Array

DRAW_PARAMS = np.dtype(sampling_layout.dtype())  # of one row


class NativeSlotTables(ctypes.Structure):
    _fields_ = (
        ("tokens", ctypes.c_void_p),
        ("token_stride", ctypes.c_int64),
        ("bias_tokens", ctypes.c_void_p),
        ("biases", ctypes.c_void_p),
        ("bias_stride", ctypes.c_int64),
        ("allowed", ctypes.c_void_p),
        ("mask_words", ctypes.c_int64),
    )


class NativeLogprobs(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("counts", "tokens", "logprobs", "ranks", "top_tokens", "top_logprobs")),
        ("width", ctypes.c_int64),
    )


class SlotTables:
    """The sequences, biases and masks of all slots, which draws read by the slot in their parameters."""

    __slots__ = ("_native", "address", "allowed", "bias_tokens", "biases", "tokens")

    def __init__(self, tokens: Array, bias_tokens: Array, biases: Array, allowed: Array) -> None:
        """`tokens` [slots, context] int32, `bias_tokens` [slots, n] int32, `biases` [slots, n] float32 and `allowed`
        [slots, bytes] uint8: a bit for each token that may be drawn, whole words of 32."""
        self.tokens, self.bias_tokens, self.biases, self.allowed = tokens, bias_tokens, biases, allowed
        self._native = NativeSlotTables(
            tokens.ctypes.data,
            tokens.shape[1],
            bias_tokens.ctypes.data,
            biases.ctypes.data,
            biases.shape[1],
            allowed.ctypes.data,
            allowed.shape[1] // 4,
        )
        self.address = ctypes.addressof(self._native)

    @classmethod
    def blank(cls, tokens: Array, most_biases: int, allowed: Array) -> SlotTables:
        shape = (len(tokens), most_biases)
        return cls(tokens, np.zeros(shape, dtype=np.int32), np.zeros(shape, dtype=np.float32), allowed)

    def with_mask(self, slot: int, allowed: Array | None) -> SlotTables:
        """Of that slot alone, now number 0, with another mask [bytes]; None: its own."""
        own = slice(slot, slot + 1)
        masks = self.allowed[own] if allowed is None else np.ascontiguousarray(allowed)[None]
        return SlotTables(self.tokens[own], self.bias_tokens[own], self.biases[own], masks)


class DrawTable:
    """The sampling parameters of a step's rows."""

    __slots__ = ("address", "positions", "slots", "table")

    def __init__(self, rows: Sequence[Mapping[str, float]], slots: SlotTables) -> None:
        """`rows`: the fields of `sampling_layout` of each."""
        self.table = np.array([sampling_layout.row(row) for row in rows], dtype=DRAW_PARAMS)
        self.positions = self.table["position"]  # to be written before each step
        self.address = self.table.ctypes.data
        self.slots = slots

    def pick(self, rows: Sequence[int]) -> DrawTable:
        """A table of these rows alone."""
        picked = DrawTable((), self.slots)
        picked.table = self.table[list(rows)]
        picked.positions, picked.address = picked.table["position"], picked.table.ctypes.data
        return picked


class LogprobTable:
    """Log-probabilities of one token of each row, and of its most likely ones, best first."""

    __slots__ = ("_native", "address", "counts", "logprobs", "ranks", "tokens", "top_logprobs", "top_tokens")

    def __init__(self, counts: Sequence[int], vocab_size: int, tokens: Array | None = None) -> None:
        """`counts` [rows]: how many of the most likely; -1: the row is not measured. `tokens` [rows]: whose; None: of
        the drawn ones."""
        rows, width = len(counts), min(max(*counts, 0, 0), vocab_size)
        self.counts = np.array(counts, dtype=np.int32)
        self.tokens = np.zeros(rows, dtype=np.int32) if tokens is None else np.ascontiguousarray(tokens, dtype=np.int32)
        self.logprobs = np.zeros(rows, dtype=np.float32)
        self.ranks = np.zeros(rows, dtype=np.int32)
        self.top_tokens = np.zeros((rows, width), dtype=np.int32)
        self.top_logprobs = np.zeros((rows, width), dtype=np.float32)
        columns = (self.counts, self.tokens, self.logprobs, self.ranks, self.top_tokens, self.top_logprobs)
        self._native = NativeLogprobs(*(column.ctypes.data for column in columns), width)
        self.address = ctypes.addressof(self._native)
