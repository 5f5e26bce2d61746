"""NVML is asked as its header has it; a machine without it has nothing to say."""

import ctypes
from typing import Any

import pytest

from penstock.observe.gpu import Gpu


class Nvml:
    """Writes into what it is given, as the library does."""

    def __init__(self, status: int = 0) -> None:
        self.status = status

    def nvmlInit_v2(self) -> int:
        return self.status

    def nvmlDeviceGetHandleByIndex_v2(self, index: int, handle: Any) -> int:
        handle._obj.value = 1234
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        assert handle.value == 1234
        memory._obj.total, memory._obj.free, memory._obj.used = 80, 50, 30
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: Any, use: Any) -> int:
        use._obj.gpu, use._obj.memory = 75, 10
        return 0


def test_reads_memory_and_utilisation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml())
    assert Gpu().read() == {"utilisation": 0.75, "memory_used": 30, "memory_total": 80}


def test_says_nothing_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Gpu("no-such-library.so").read() is None
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Nvml(status=9))
    assert Gpu().read() is None
