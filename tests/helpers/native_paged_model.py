"""Runs a model through the native program without a scheduler, as `paged_model.PagedModel` does with operations.

Pages start full of NaN where their type has one, blocks are handed out in random order, and block ids that a window has
left behind are put to 0.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from penstock.flow import Row
from penstock.forward.memory import CacheSize
from penstock.forward.native_model import NativeModel
from penstock.forward.native_pages import allocate_native_pages
from penstock.forward.slot_arrays import SlotArrays
from penstock.kernels.arrays import Array
from penstock.kernels.cpu import library
from penstock.kernels.cpu.low_rank import PackedAdapter
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Pages, as_array
from penstock.model import Decoder
from penstock.store.kv_types import kv_types
from penstock.store.spec import ModelSpec

needs_library = pytest.mark.skipif(library.load() is None, reason="the native kernels are not built")


def make_native_pages(spec: ModelSpec, num_blocks: int, block_size: int, dtype: str) -> list[Pages]:
    block_bytes = [spec.block_bytes(group, block_size, kv_types(dtype)) for group in spec.cache_groups]
    size = CacheSize(block_size, (num_blocks,) * len(block_bytes), tuple(block_bytes))
    pages = allocate_native_pages(spec, size, kv_types(dtype))
    for layer in pages:
        for tensor in (layer.keys, layer.values, layer.key_scales, layer.value_scales):
            if tensor is not None:
                array = as_array(tensor)
                array.fill(77 if array.dtype.itemsize == 1 else np.nan)
    return pages


@dataclass
class PagedSequence:
    tokens: list[int]
    computed: int = 0
    blocks: list[list[int]] = field(default_factory=list)
    logits: list[Array] = field(default_factory=list)  # one [count, vocab] per step
    adapter: PackedAdapter | None = None


class NativePagedModel:
    """A model with its pages. `add` sequences, then `step` through them in any order and in any portions."""

    def __init__(
        self,
        model: Decoder,
        pool: Pool,
        *,
        block_size: int = 4,
        num_blocks: int = 512,
        dtype: str = "float32",  # as in the setting: int8, or int8,int4
        sequences: int = 20,
        context: int = 512,
        seed: int = 0,
        adapted: bool = False,
    ) -> None:
        spec = model.spec
        self.groups = spec.cache_groups
        self.pages = make_native_pages(spec, num_blocks, block_size, dtype)
        self.block_size = block_size
        self.slots = SlotArrays(sequences, context, block_size, len(self.groups))
        self.model = NativeModel(model, spec, pool, self.pages, self.slots, step_tokens=1024, adapted=adapted)
        self.free = [
            random.Random(seed + group).sample(range(1, num_blocks), num_blocks - 1)
            for group in range(len(self.groups))
        ]
        self.sequences: list[PagedSequence] = []

    def add(self, tokens: Sequence[int], adapter: PackedAdapter | None = None) -> int:
        slot = len(self.sequences)
        self.slots.tokens[slot, : len(tokens)] = tokens
        self.sequences.append(PagedSequence(list(tokens), blocks=[[] for _ in self.groups], adapter=adapter))
        return slot

    def step(self, portions: dict[int, int]) -> None:
        """Compute the next `portions[index]` tokens of each sequence in one batch, with all their logits."""
        rows = self.rows(portions)
        self.model.run(rows, None, show=True, adapters=self.adapters(rows))
        first = 0
        for row in rows:
            end = first + row.count
            parts = [self.model.logits(at, min(at + 16, end)).copy() for at in range(first, end, 16)]
            self.sequences[row.slot].logits.append(np.concatenate(parts))
            first += row.count

    def adapters(self, rows: list[Row]) -> array[int] | None:
        found = [self.sequences[row.slot].adapter for row in rows]
        return array("Q", [0 if one is None else one.address for one in found]) if any(found) else None

    def rows(self, portions: dict[int, int]) -> list[Row]:
        order = sorted(portions, key=lambda index: portions[index] != 1)
        return [self._row(index, portions[index]) for index in order]

    def logits(self, index: int) -> Array:
        """Of all positions computed so far, [positions, vocab]."""
        return np.concatenate(self.sequences[index].logits)

    def _row(self, slot: int, count: int) -> Row:
        sequence = self.sequences[slot]
        start, end = sequence.computed, sequence.computed + count
        for group, blocks, free, table in zip(self.groups, sequence.blocks, self.free, self.slots.tables, strict=True):
            while len(blocks) * self.block_size < end:
                blocks.append(free.pop())
            if group.window:
                left_behind = max(0, start - group.window + 1) // self.block_size
                blocks[:left_behind] = [0] * left_behind
            table[slot, : len(blocks)] = blocks
        sequence.computed = end
        return Row(slot, start, count, True)
