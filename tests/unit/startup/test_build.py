"""Which backends can be built."""

from __future__ import annotations

import importlib
import inspect

import pytest

from penstock.startup import build


@pytest.mark.parametrize("kind", build.BACKENDS)
def test_every_backend_has_a_build_function(kind: build.BackendKind) -> None:
    if kind == "cuda":
        pytest.importorskip("triton", reason="triton is not installed")
    module = importlib.import_module(build.BACKENDS[kind])
    assert list(inspect.signature(module.build).parameters) == ["config", "grammars", "end_phase"]
