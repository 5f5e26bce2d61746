"""Memory of a CUDA device behind addresses that outlive it, by the driver's functions for virtual memory.

A range of addresses is reserved once. Memory is mapped into it, unmapped and mapped again; what holds an address, such
as a CUDA graph, need not know.
"""

from __future__ import annotations

import ctypes
import functools
import weakref
from typing import NamedTuple

import torch

OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp"""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("win32_metadata", ctypes.c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class _Access(ctypes.Structure):
    """CUmemAccessDesc"""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


_DEVICE, _PINNED, _READ_WRITE, _MINIMUM = 1, 1, 3, 0  # of the driver's enums


class VirtualMemory:
    """A range of addresses, of which the first `num_bytes` have memory. Not thread-safe. All is given back when nothing
    refers to it any more."""

    def __init__(self, most_bytes: int, device: torch.device) -> None:
        _free_abandoned()
        self._device = torch.cuda.current_device() if device.index is None else device.index
        self._granularity = _granularity(self._device)
        self._reserved = self.round_up(most_bytes)
        self._mapped: list[_Mapped] = []  # one behind the other
        address, none = ctypes.c_ulonglong(), ctypes.c_ulonglong(0)
        reserved = ctypes.c_size_t(self._reserved)
        _call("cuMemAddressReserve", ctypes.byref(address), reserved, ctypes.c_size_t(0), none, none)
        self.address = address.value
        finalizer = weakref.finalize(self, _free, self._device, self.address, self._reserved, self._mapped)
        finalizer.atexit = False  # the end of the process gives everything back

    @property
    def num_bytes(self) -> int:
        return sum(one.size for one in self._mapped)

    def round_up(self, num_bytes: int) -> int:
        return -(-num_bytes // self._granularity) * self._granularity

    def grow(self, num_bytes: int) -> None:
        """Map so many bytes more, a multiple of the granularity. Raises torch.OutOfMemoryError."""
        place = self.address + self.num_bytes
        if place + num_bytes > self.address + self._reserved:
            raise torch.OutOfMemoryError(f"{num_bytes} bytes more than the {self._reserved} that are reserved")
        handle, properties = ctypes.c_ulonglong(), _properties(self._device)
        address, size = ctypes.c_ulonglong(place), ctypes.c_size_t(num_bytes)
        _call("cuMemCreate", ctypes.byref(handle), size, ctypes.byref(properties), ctypes.c_ulonglong(0))
        try:
            _call("cuMemMap", address, size, ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        except BaseException:
            _call("cuMemRelease", handle)
            raise
        self._mapped.append(_Mapped(place, num_bytes, handle.value))
        access = _Access(_Location(_DEVICE, self._device), _READ_WRITE)
        _call("cuMemSetAccess", address, size, ctypes.byref(access), ctypes.c_size_t(1))

    def release(self) -> None:
        """Give the memory back, once the device has finished its work; the addresses stay reserved."""
        _unmap(self._device, self._mapped)


class _Mapped(NamedTuple):
    address: int
    size: int
    handle: int


def _unmap(device: int, mapped: list[_Mapped]) -> None:
    torch.cuda.synchronize(device)
    while mapped:
        one = mapped.pop()
        _call("cuMemUnmap", ctypes.c_ulonglong(one.address), ctypes.c_size_t(one.size))
        _call("cuMemRelease", ctypes.c_ulonglong(one.handle))


def _free(device: int, address: int, reserved: int, mapped: list[_Mapped]) -> None:
    """Called by the garbage collector, and so at any time: also while a CUDA graph is captured, when nothing may be
    unmapped."""
    _abandoned.append((device, address, reserved, mapped))
    if not torch.cuda.is_current_stream_capturing():
        _free_abandoned()


_abandoned: list[tuple[int, int, int, list[_Mapped]]] = []


def _free_abandoned() -> None:
    while _abandoned:
        device, address, reserved, mapped = _abandoned.pop()
        _unmap(device, mapped)
        _call("cuMemAddressFree", ctypes.c_ulonglong(address), ctypes.c_size_t(reserved))


def _properties(device: int) -> _AllocationProperties:
    return _AllocationProperties(type=_PINNED, location=_Location(_DEVICE, device))


def _granularity(device: int) -> int:
    size, properties = ctypes.c_size_t(), _properties(device)
    _call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(properties), ctypes.c_int(_MINIMUM))
    return size.value


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: object) -> None:
    code: int = getattr(_driver(), name)(*arguments)
    if code == OUT_OF_MEMORY:
        raise torch.OutOfMemoryError(f"CUDA out of memory ({name})")
    if code:
        raise RuntimeError(f"{name} failed with CUDA error {code}")
