"""Adapters in memory of the host, ready to be copied to a device: an LRU cache, bounded in bytes."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.adapters.extents import Extents
from penstock.flow import Adapter
from penstock.forward.adapter_blobs import PackedAdapter, pack
from penstock.kernels.low_rank import DeltaMatrices

Key = tuple[str, str]  # name and version
SLAB = 64 << 20  # bytes allocated at a time: pinning more would keep other threads from launching


class _Extent(NamedTuple):
    slab: int
    begin: int  # in bytes
    size: int


@dataclass(slots=True)
class _Entry:
    packed: PackedAdapter
    extents: list[_Extent] = field(default_factory=list)


class HostAdapters:
    """Call all methods from the thread that loads adapters. Memory is taken as it is needed, and kept."""

    def __init__(
        self,
        read: Callable[[Adapter], Iterable[DeltaMatrices]],
        num_layers: int,
        dtype: torch.dtype,
        capacity: int,
        allocate: Callable[[int], Tensor],
        spare_tokens: int = 0,
    ) -> None:
        """`capacity` in bytes, which one adapter alone may exceed; `allocate` gives so many bytes of memory;
        `spare_tokens` as in `pack`."""
        self._read, self._num_layers, self._dtype, self._spare_tokens = read, num_layers, dtype, spare_tokens
        self._capacity, self._allocate = capacity, allocate
        self._slabs: list[tuple[Tensor, Extents]] = []
        self._entries: OrderedDict[Key, _Entry] = OrderedDict()  # least recently used first

    @property
    def num_bytes(self) -> int:
        """Of all slabs."""
        return sum(len(memory) for memory, _ in self._slabs)

    def get(self, adapter: Adapter) -> PackedAdapter:
        """From memory, or from its files. Raises a PenstockError that says what is wrong with these."""
        found = self._entries.get(adapter.key)
        if found is None:
            extents: list[_Extent] = []
            try:
                packed = pack(
                    self._read(adapter), self._num_layers, lambda count: self._take(count, extents), self._spare_tokens
                )
            except BaseException:
                self._give(extents)
                raise
            found = self._entries[adapter.key] = _Entry(packed, extents)
        self._entries.move_to_end(adapter.key)
        return found.packed

    def _take(self, count: int, extents: list[_Extent]) -> Tensor:
        """Memory for so many numbers, in place of the adapters least recently used."""
        size = math.ceil(count * self._dtype.itemsize / 512) * 512
        while (extent := self._find(size)) is None:
            if self.num_bytes + max(size, SLAB) <= self._capacity or not self._entries:
                slab = self._allocate(max(size, SLAB))
                self._slabs.append((slab, Extents(len(slab))))
            else:
                self._give(self._entries.popitem(last=False)[1].extents)
        extents.append(extent)
        memory = self._slabs[extent.slab][0][extent.begin : extent.begin + count * self._dtype.itemsize]
        return memory.view(self._dtype)

    def _find(self, size: int) -> _Extent | None:
        for number, (_, extents) in enumerate(self._slabs):
            begin = extents.take(size)
            if begin is not None:
                return _Extent(number, begin, size)
        return None

    def _give(self, extents: Iterable[_Extent]) -> None:
        for slab, begin, size in extents:
            self._slabs[slab][1].give(begin, size)
