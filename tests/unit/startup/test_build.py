"""Which backend is built for which settings."""

from __future__ import annotations

import importlib
import inspect

import pytest
import torch

from penstock.errors import InvalidSetting
from penstock.kernels.cpu import library
from penstock.settings import ModelSettings, Settings
from penstock.startup import build

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


@pytest.mark.parametrize("kind", build.BACKENDS)
def test_every_backend_has_a_build_function(kind: build.BackendKind) -> None:
    if kind == "cuda":
        pytest.importorskip("triton", reason="triton is not installed")
    module = importlib.import_module(build.BACKENDS[kind])
    assert list(inspect.signature(module.build).parameters) == ["config", "grammars", "end_phase"]


@pytest.mark.parametrize(
    ("device", "dtype", "is_built", "kind"),
    [
        (CPU, "auto", True, "native"),
        (CPU, "auto", False, "torch"),
        (CPU, "float32", True, "torch"),
        (CUDA, "auto", True, "cuda"),
        (CUDA, "float32", False, "cuda"),
    ],
)
def test_choice(
    monkeypatch: pytest.MonkeyPatch, device: torch.device, dtype: str, is_built: bool, kind: build.BackendKind
) -> None:
    monkeypatch.setattr(library, "load", lambda: object() if is_built else None)
    settings = Settings(model=ModelSettings(dtype=dtype))
    assert build._kind(settings, device) == kind


def test_quantized_weights_need_the_native_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "load", lambda: None)
    with pytest.raises(InvalidSetting, match="only the native CPU kernels") as caught:
        build._kind(Settings(model=ModelSettings(quantize="int8")), CPU)
    assert caught.value.param == "quantize"
