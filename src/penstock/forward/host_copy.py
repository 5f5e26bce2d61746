"""A copy of device memory in pinned memory of the host, which can be copied back at the speed of the bus."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor

PIECE = 1 << 30  # bytes: allocated, pinned and copied by a thread of its own
THREADS = 8


class HostCopy:
    def __init__(self, values: Tensor) -> None:
        """`values`: bytes on the device. Takes some seconds for 16 GiB: the host's pages have to be made and pinned."""
        with ThreadPoolExecutor(THREADS) as pool:
            self._pieces = list(pool.map(_copied, _split(values)))

    def restore(self, values: Tensor) -> None:
        """Copy back, to memory of the same size; waits until it is done."""
        for piece, target in zip(self._pieces, _split(values), strict=True):
            target.copy_(piece.bytes, non_blocking=True)
        torch.cuda.synchronize(values.device)


class PinnedBytes:
    """Pages of its own, not of torch's allocator, which rounds sizes up to a power of two."""

    def __init__(self, size: int) -> None:
        self.bytes = torch.from_numpy(np.frombuffer(mmap.mmap(-1, size), dtype=np.uint8))
        address = self.bytes.data_ptr()
        ctypes.memset(address, 0, size)  # makes pages, on all threads at once; pinning would one by one
        torch.cuda.check_error(int(_runtime().cudaHostRegister(address, size, 0)))
        finalizer = weakref.finalize(self, _unpin, address)
        finalizer.atexit = False


def _unpin(address: int) -> None:
    """While the pages are still there: others may get their addresses."""
    _runtime().cudaHostUnregister(address)


def _runtime() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call]


def _copied(values: Tensor) -> PinnedBytes:
    pinned = PinnedBytes(len(values))
    pinned.bytes.copy_(values)
    return pinned


def _split(values: Tensor) -> list[Tensor]:
    return [values[begin : begin + PIECE] for begin in range(0, len(values), PIECE)]
