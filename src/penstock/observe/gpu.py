"""GPU memory and utilisation from NVML, the driver's library; None without an NVIDIA driver."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

logger = logging.getLogger(__name__)

LIBRARY = "libnvidia-ml.so.1"


class _Memory(ctypes.Structure):
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


class _Utilisation(ctypes.Structure):
    _fields_ = [("gpu", ctypes.c_uint), ("memory", ctypes.c_uint)]


class Gpu:
    """The first GPU of the machine."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._nvml: Any = None
        self._handle = ctypes.c_void_p()
        try:
            nvml = ctypes.CDLL(library)
        except OSError:
            return
        if nvml.nvmlInit_v2() == 0 and nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self._handle)) == 0:
            self._nvml = nvml

    def read(self) -> dict[str, Any] | None:
        if self._nvml is None:
            return None
        memory, use = _Memory(), _Utilisation()
        if self._nvml.nvmlDeviceGetMemoryInfo(self._handle, ctypes.byref(memory)) != 0:
            return None
        known = self._nvml.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(use)) == 0
        return {
            "utilisation": use.gpu / 100 if known else 0.0,
            "memory_used": memory.used,
            "memory_total": memory.total,
        }
