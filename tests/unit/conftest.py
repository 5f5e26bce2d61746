from __future__ import annotations

import ctypes
import platform
from collections.abc import Iterator

import pytest

from penstock.kernels.cpu import library

ARM = platform.machine().lower() in ("aarch64", "arm64")
ISAS = ("portable", "neon", "dotprod") if ARM else ("portable", "avx2", "avx512", "avx512vnni")


@pytest.fixture(params=ISAS)
def native(request: pytest.FixtureRequest) -> Iterator[ctypes.CDLL]:
    """The library, computing with one instruction set after the other."""
    loaded = library.load()
    if loaded is None:
        pytest.skip("the native library was not built")
    before = loaded.penstock_isa()
    if not loaded.penstock_select(request.param.encode()):
        pytest.skip(f"no {request.param} here")
    yield loaded
    loaded.penstock_select(before)
