from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.kernels import wake


def test_without_a_driver_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    wake._retain()


@pytest.mark.parametrize(("status", "calls"), [(0, ["init", "device", "context"]), (100, ["init"])])
def test_the_context_is_made_if_there_is_a_device(
    status: int, calls: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []

    def answer(name: str) -> Any:
        return lambda *_: made.append(name) or status

    driver = SimpleNamespace(
        cuInit=answer("init"), cuDeviceGet=answer("device"), cuDevicePrimaryCtxRetain=answer("context")
    )
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    wake._retain()
    assert made == calls
