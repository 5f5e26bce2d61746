"""A copy of device memory in pinned memory of the host, which can be copied back at the speed of the bus."""

from __future__ import annotations

import ctypes
import mmap
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
            target.copy_(piece, non_blocking=True)
        torch.cuda.synchronize(values.device)


def _split(values: Tensor) -> list[Tensor]:
    return [values[begin : begin + PIECE] for begin in range(0, len(values), PIECE)]


def _copied(values: Tensor) -> Tensor:
    """Pages of its own, not of torch's allocator, which rounds sizes up to a power of two."""
    pages = mmap.mmap(-1, len(values))
    host = torch.from_numpy(np.frombuffer(pages, dtype=np.uint8))
    ctypes.memset(host.data_ptr(), 0, len(values))  # makes pages, on all threads at once; pinning would one by one
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(int(runtime.cudaHostRegister(host.data_ptr(), len(values), 0)))
    host.copy_(values)
    return host
