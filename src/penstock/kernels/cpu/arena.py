"""Memory for weights, in huge pages where the system has them: with 4 KiB pages a step that reads every weight once
spends a good part of its time on address translation (measured: 27 against 36 GB/s on two cores)."""

from __future__ import annotations

import ctypes
import mmap
from math import prod
from threading import Lock

import numpy as np
from numpy.typing import DTypeLike

from penstock.kernels.arrays import Array

PAGE = 2 << 20
CHUNK = 64 << 20  # address space of a mapping; memory is allocated as it is written
ALIGNMENT = 64


class Arena:
    """Allocates arrays one after the other from large mappings, which live as long as the arrays."""

    def __init__(self) -> None:
        self._chunk = np.empty(0, dtype=np.uint8)
        self._lock = Lock()

    def empty(self, *shape: int, dtype: DTypeLike) -> Array:
        size = prod(shape) * np.dtype(dtype).itemsize
        room = -(-size // ALIGNMENT) * ALIGNMENT
        with self._lock:
            if room > len(self._chunk):
                self._chunk = _map(max(room, CHUNK))
            taken, self._chunk = self._chunk[:size], self._chunk[room:]
        return taken.view(dtype).reshape(shape)


def _map(size: int) -> Array:
    """[at least size] bytes, aligned to a huge page."""
    size = -(-size // PAGE) * PAGE
    mapping = mmap.mmap(-1, size + PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    begin = -ctypes.addressof(ctypes.c_char.from_buffer(mapping)) % PAGE
    return np.frombuffer(mapping, dtype=np.uint8, count=size, offset=begin)
