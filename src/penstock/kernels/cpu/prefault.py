"""Populate the memory of KV blocks before a step writes to it.

The first touch of a huge page makes the kernel find, maybe by compaction, and clear two megabytes; in a virtual machine
the host may have to do so as well (measured on a fresh one: 10 ms a page, against 0.2 ms once it had been used). In a
step all sequences would wait for that, so a thread does it ahead of them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable

from penstock.kernels.arrays import Array
from penstock.kernels.cpu.arena import PAGE

# Populated beyond the blocks in use, in whole pages: what decoding takes next. A long prompt's step may wait for some
# pages, once; a reserve for that would cost every engine its memory.
AHEAD_BLOCKS = 1

MADV_POPULATE_WRITE = 23  # of Linux 5.14; it changes no content, so others may write meanwhile


class Prefault:
    """For the memory of one cache group. Blocks are allocated from the first on, so the highest one tells the next."""

    def __init__(self, blocks: Array, populate: Callable[[int, int], bool] | None = None) -> None:
        """`blocks` [blocks, ...], each contiguous, starting at a page boundary. `populate` takes an address and a
        length."""
        self._blocks = blocks  # keeps the memory alive while the thread runs
        self._count, self._block_bytes = len(blocks), blocks.strides[0]
        self._populate = populate or _populate
        self._target_bytes = self._populated_bytes = 0
        self._thread: threading.Thread | None = None
        self.cover(0)

    def cover(self, highest: int) -> None:
        """Blocks up to `highest` are in use. Returns at once."""
        blocks = min(highest + 1 + AHEAD_BLOCKS, self._count)
        self._target_bytes = max(self._target_bytes, -(-blocks * self._block_bytes // PAGE) * PAGE)
        if self._populated_bytes < self._target_bytes and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(target=self._run, name="prefault", daemon=True)
            self._thread.start()

    def wait(self) -> None:
        """Until all blocks that `cover` asked for are populated."""
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while self._populated_bytes < self._target_bytes:
            if not self._populate(self._blocks.ctypes.data + self._populated_bytes, PAGE):
                self._count = self._target_bytes = 0  # not supported here: pages are populated when they are written
                return
            self._populated_bytes += PAGE


def _populate(address: int, length: int) -> bool:
    if sys.platform != "linux":
        return False
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(madvise(address, length, MADV_POPULATE_WRITE) == 0)
