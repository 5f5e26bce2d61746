"""Waking the device: with a driver and without one, neither of which has to be real."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from penstock.startup import gpu_warmup


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
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=None))
    monkeypatch.setattr(gpu_warmup, "_waking", None)
    return made


def test_driver_and_triton_are_prepared_once(calls: list[str]) -> None:
    gpu_warmup.wake_device()
    gpu_warmup.wake_device()
    gpu_warmup.wait_awake()
    assert sorted(calls) == ["CudaUtils", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "cuInit", "triton_key"]


def test_what_fails_is_left_to_the_first_launch(
    calls: list[str], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_compiler() -> None:
        raise RuntimeError("no C compiler")

    monkeypatch.setattr(sys.modules["triton.backends.nvidia.driver"], "CudaUtils", no_compiler)
    with caplog.at_level("DEBUG", "penstock.startup.gpu_warmup"):
        gpu_warmup.wake_device()
        gpu_warmup.wait_awake()
    assert "no C compiler" in caplog.text
    assert "cuDevicePrimaryCtxRetain" in calls


def test_without_a_driver_nothing_is_done(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise OSError(name)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    gpu_warmup.wake_device()
    gpu_warmup.wait_awake()
    assert calls == []


def test_without_a_device_triton_is_left_alone(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    no_device = 100
    monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(cuInit=lambda _: no_device))
    gpu_warmup.wake_device()
    gpu_warmup.wait_awake()
    assert calls == []


def test_without_triton_no_thread_is_started(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    gpu_warmup.wake_device()
    assert gpu_warmup._waking is None
    gpu_warmup.wait_awake()
    assert calls == []


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One that is installed, with a file of the kind that takes long to read."""
    package = tmp_path / "sluice"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "inner" / "large.so").write_text("machine code")
    information = tmp_path / "sluice-1.0.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: sluice\nVersion: 1.0\n")
    (information / "RECORD").write_text("sluice/inner/large.so,sha256=abc,12\n")
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_the_key_of_a_package_stays_while_its_files_do(package: Path) -> None:
    assert gpu_warmup._key("sluice") == gpu_warmup._key("sluice") is not None


@pytest.mark.parametrize("changed", ["size", "time", "record", "more"])
def test_the_key_of_a_package_changes_with_its_files(package: Path, changed: str) -> None:
    before, large = gpu_warmup._key("sluice"), package / "inner" / "large.so"
    times = large.stat().st_atime_ns, large.stat().st_mtime_ns
    if changed == "size":
        large.write_text("other machine code")
        os.utime(large, ns=times)
    elif changed == "time":
        os.utime(large, ns=(times[0], times[1] + 1))
    elif changed == "record":  # installed by something that gives all files one time, and none grew
        (package.parent / "sluice-1.0.dist-info" / "RECORD").write_text("sluice/inner/large.so,sha256=def,12\n")
    else:
        (package / "inner" / "more.py").touch()
    assert gpu_warmup._key("sluice") != before


def test_a_package_that_came_without_hashes_has_no_key(package: Path) -> None:
    (package.parent / "sluice-1.0.dist-info" / "RECORD").unlink()
    assert gpu_warmup._key("sluice") is None
    (package.parent / "sluice-1.0.dist-info" / "METADATA").unlink()
    package.parent.joinpath("sluice-1.0.dist-info").rmdir()
    assert gpu_warmup._key("sluice") is None


def test_triton_takes_the_key(calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_warmup, "_key", lambda package: f"the key of {package}")
    gpu_warmup.wake_device()
    gpu_warmup.wait_awake()
    assert sys.modules["triton.runtime.cache"].triton_key() == "the key of triton"
    assert "triton_key" not in calls
