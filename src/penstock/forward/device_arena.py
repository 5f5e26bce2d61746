"""Tensors whose memory a sleeping engine gives back: weights, which are kept on the host meanwhile, and KV pages.

Their addresses stay the same, so that CUDA graphs, which hold addresses, stay valid.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from penstock.errors import OutOfMemory
from penstock.forward.host_copy import HostCopy
from penstock.forward.virtual_memory import VirtualMemory
from penstock.startup.preflight import readable
from penstock.system import resources

ALIGNMENT = 512  # bytes, as torch's allocator has it
CHUNK = 32 << 20  # bytes mapped at a time for small tensors


class DeviceArena:
    """Allocates tensors one behind the other and frees none. `empty` may be called by several threads."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._memory = VirtualMemory(torch.cuda.mem_get_info(device)[1], device)
        self._end = 0  # of the last tensor
        self._lock = threading.Lock()
        self._copy: HostCopy | None = None  # of tensors that do not change, once it was made

    @property
    def num_bytes(self) -> int:
        """Of the device's memory, at present."""
        return self._memory.num_bytes

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return self._end

    def empty(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """Not initialised. Raises torch.OutOfMemoryError."""
        size = prod(shape) * dtype.itemsize
        with self._lock:
            begin = -(-self._end // ALIGNMENT) * ALIGNMENT
            self._map_up_to(begin + size)
            self._end = begin + size
        return self._bytes(begin, size).view(dtype).view(*shape)

    def save(self, ranks: int = 1) -> None:
        """Copy the tensors to pinned memory of the host, for `restore`. Raises OutOfMemory. They must not change any
        more: the copy is made once, and kept. `ranks` of a group save as much each, at the same time."""
        if self._copy is not None:
            return
        free, needed = resources.host_bytes(), self._end * ranks
        if needed > free:
            raise OutOfMemory(
                f"asleep, the weights take {readable(needed)} of the host's memory, and {readable(free)} are free: "
                f"{readable(needed - free)} are missing; unload the model instead",
                param="model",
            )
        self._copy = HostCopy(self._bytes(0, self._end))

    def release(self) -> None:
        """Give the memory back, once the device has finished its work."""
        self._memory.release()

    def restore(self) -> None:
        """Take the memory again, with what was saved. Raises torch.OutOfMemoryError, and has none then."""
        self._map_up_to(self._end)
        if self._copy is not None:
            self._copy.restore(self._bytes(0, self._end))

    def _map_up_to(self, end: int) -> None:
        lack = end - self._memory.num_bytes
        if lack <= 0:
            return
        size = self._memory.round_up(max(lack, CHUNK))
        try:
            self._memory.grow(size)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            self._memory.grow(size)

    def _bytes(self, begin: int, size: int) -> Tensor:
        if not size:
            return torch.empty(0, dtype=torch.uint8, device=self.device)
        return torch.as_tensor(_CudaArray(self._memory, begin, size), device=self.device)


class _CudaArray:
    """Bytes of the arena, for `torch.as_tensor`: the tensor keeps this object, and so the addresses."""

    def __init__(self, memory: VirtualMemory, begin: int, size: int) -> None:
        self._memory = memory
        self.__cuda_array_interface__: dict[str, Any] = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (memory.address + begin, False),
            "version": 2,
        }
