"""Memory of KV blocks is backed by pages before a step writes to it.

The first touch of a huge page makes the kernel find, maybe by compaction, and clear two megabytes; in a virtual machine
the host may have to do so as well (measured on a fresh one: 10 ms a page, against 0.2 ms once it had been used). In a
step that would be waited for by every sequence, so a thread does it ahead of them.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable

from torch import Tensor

from penstock.kernels.cpu.arena import PAGE

MADV_POPULATE_WRITE = 23  # of Linux 5.14; it changes no content, so others may write meanwhile


class Prefault:
    """Of one cache group's memory. Blocks are handed out from the first on, so what was used tells what is next."""

    def __init__(self, blocks: Tensor, ahead: int, populate: Callable[[int, int], bool] | None = None) -> None:
        """`blocks` [blocks, ...], of which all that belongs to one lies together, from the begin of a page on. `ahead`:
        how many are backed beyond those in use. `populate` takes an address and a length."""
        self._blocks = blocks  # keeps the memory while the thread is at work
        self._count, self._block_bytes = len(blocks), blocks.stride(0) * blocks.element_size()
        self._ahead = ahead
        self._populate = populate or _populate
        self._wanted = self._done = 0  # bytes
        self._worker: threading.Thread | None = None
        self.cover(0)

    def cover(self, highest: int) -> None:
        """Blocks up to `highest` are in use. Returns at once."""
        blocks = min(highest + 1 + self._ahead, self._count)
        self._wanted = max(self._wanted, -(-blocks * self._block_bytes // PAGE) * PAGE)
        if self._done < self._wanted and (self._worker is None or not self._worker.is_alive()):
            self._worker = threading.Thread(target=self._work, name="prefault", daemon=True)
            self._worker.start()

    def wait(self) -> None:
        """Until what was asked for is there."""
        if self._worker is not None:
            self._worker.join()

    def _work(self) -> None:
        while self._done < self._wanted:
            if not self._populate(self._blocks.data_ptr() + self._done, PAGE):
                self._count = self._wanted = 0  # this system cannot: pages come as they are written
                return
            self._done += PAGE


def _populate(address: int, length: int) -> bool:
    if sys.platform != "linux":
        return False
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return bool(madvise(address, length, MADV_POPULATE_WRITE) == 0)
