"""Waking the device: with a driver and without one, neither of which has to be real."""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from types import ModuleType, SimpleNamespace

import pytest

from penstock.kernels import wake


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the driver and Triton are asked for, in place of both."""
    made: list[str] = []

    def told(name: str, answer: int = 0) -> object:
        return lambda *_: made.append(name) or answer

    driver = SimpleNamespace(**{n: told(n) for n in ("cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain")})
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    monkeypatch.setitem(sys.modules, "triton", sys.modules.get("triton", ModuleType("triton")))
    for name, attribute in (("triton.backends.nvidia.driver", "CudaUtils"), ("triton.runtime.cache", "triton_key")):
        module = ModuleType(name)
        setattr(module, attribute, told(attribute))
        for parent in (name.rsplit(".", n)[0] for n in range(name.count("."), 0, -1)):
            monkeypatch.setitem(sys.modules, parent, sys.modules.get(parent, ModuleType(parent)))
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(wake, "_waking", None)
    return made


def test_driver_and_triton_are_prepared_once(calls: list[str]) -> None:
    wake.wake_device()
    wake.wake_device()
    wake.wait_awake()
    assert sorted(calls) == ["CudaUtils", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuInit", "triton_key"]


def test_what_fails_is_left_to_the_first_launch(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler() -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(sys.modules["triton.backends.nvidia.driver"], "CudaUtils", no_compiler)
    with caplog.at_level("DEBUG", "penstock.kernels.wake"):
        wake.wake_device()
        wake.wait_awake()
    assert "no C compiler" in caplog.text
    assert "cuDevicePrimaryCtxRetain" in calls


def test_without_a_driver_nothing_is_done(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    wake.wake_device()
    wake.wait_awake()
    assert calls == []


def test_without_a_device_triton_is_left_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    no_device = 100
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuInit=lambda _: no_device))
    wake.wake_device()
    wake.wait_awake()
    assert calls == []


def test_without_triton_no_thread_is_started(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    wake.wake_device()
    assert wake._waking is None
    wake.wait_awake()
    assert calls == []
