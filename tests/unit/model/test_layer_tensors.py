"""Tensors of a quantized layer that are missing, of another type or shape, or impossible: errors that name them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from helpers import quantized_checkpoints, tiny_models
from helpers.native_paged_model import needs_library
from penstock.errors import ModelInvalid
from penstock.model import PackedForm, load, open_source
from penstock.store.hf_folder import read

GATE = "model.layers.0.mlp.gate_proj"  # 96 x 64
Change = Callable[[dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("qwen2", tmp_path_factory.mktemp("model"), num_hidden_layers=1)


def without(*names: str) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        for name in names:
            del tensors[f"{GATE}.{name}"]

    return change


def with_shape(name: str, *shape: int) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"{GATE}.{name}"] = torch.ones(shape, dtype=tensors[f"{GATE}.{name}"].dtype)

    return change


def with_type(name: str, dtype: torch.dtype) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"{GATE}.{name}"] = torch.ones(tensors[f"{GATE}.{name}"].shape).to(dtype)

    return change


def filled(name: str, value: float) -> Change:
    def change(tensors: dict[str, Tensor]) -> None:
        tensors[f"{GATE}.{name}"] = torch.full_like(tensors[f"{GATE}.{name}"], value)

    return change


ASYMMETRIC = {"symmetric": False}
PLAIN = {"symmetric": False, "plain_zeros": True}


@pytest.mark.parametrize(
    ("name", "options", "change", "message"),
    [
        ("awq", {}, without("scales"), "scales is missing: {}.qweight cannot be read without it"),
        ("gptq", {}, without("qzeros"), "qzeros is missing"),
        ("gptq", {"desc_act": True}, without("g_idx"), "g_idx is missing"),
        ("packed", ASYMMETRIC, without("weight_zero_point"), "weight_zero_point is missing"),
        ("fp8", {}, without("weight_scale"), "weight_scale is missing"),
        ("fp8", {"scale": "block"}, without("weight_scale_inv"), "weight_scale_inv is missing"),
        ("nvfp4", {}, without("weight_global_scale"), "weight_global_scale is missing"),
        ("awq", {}, with_shape("scales", 3, 96), r"scales has shape \(3, 96\), which does not fit .*\(96, 64\)"),
        ("awq", {}, with_shape("qzeros", 2, 5), "qzeros has shape"),
        ("gptq", {}, with_shape("qzeros", 2, 5), r"qzeros has shape \(2, 5\)"),
        ("gptq", {}, with_shape("scales", 2, 95), r"scales has shape \(2, 95\)"),
        ("gptq", {}, with_shape("g_idx", 63), r"g_idx has shape \(63,\): .* of each of 64 inputs"),
        ("packed", {}, with_shape("weight_scale", 96, 5), r"weight_scale has shape \(96, 5\)"),
        ("packed", ASYMMETRIC, with_shape("weight_zero_point", 11, 2), r"weight_zero_point has shape \(11, 2\)"),
        ("packed", ASYMMETRIC, with_shape("weight_zero_point", 24), r"weight_zero_point has shape \(24,\)"),
        ("packed", PLAIN, with_shape("weight_zero_point", 96, 1), r"weight_zero_point has shape \(96, 1\)"),
        ("packed", {"bits": 8}, with_shape("weight_packed", 96, 8), r"weight_packed has shape \(96, 8\)"),
        ("int8", {}, with_shape("weight_scale", 7, 1), r"weight_scale has shape \(7, 1\)"),
        ("int8", {}, with_shape("weight", 0, 64), r"weight has shape \(0, 64\): it must have two dimensions"),
        ("fp8", {}, with_shape("weight_scale", 7, 1), r"weight_scale has shape \(7, 1\)"),
        ("fp8", {}, with_shape("weight", 0, 64), r"weight has shape \(0, 64\)"),
        ("nvfp4", {}, with_shape("weight_scale", 96, 5), r"weight_scale has shape \(96, 5\)"),
        ("nvfp4", {}, with_shape("weight_global_scale", 2), r"weight_global_scale has shape \(2,\)"),
        ("awq", {}, with_type("qweight", torch.float16), "qweight has dtype F16: it must be I32"),
        ("gptq", {}, with_type("qweight", torch.int16), "qweight has dtype I16"),
        ("gptq", {}, with_type("g_idx", torch.float32), "g_idx has dtype F32: it must be I32 or I64"),
        ("packed", {}, with_type("weight_packed", torch.float16), "weight_packed has dtype F16"),
        ("packed", {}, with_type("weight_shape", torch.int16), "weight_shape has dtype I16"),
        ("fp8", {}, with_type("weight", torch.float8_e5m2), "weight has dtype F8_E5M2"),
        ("nvfp4", {}, with_type("weight_scale", torch.float32), "weight_scale has dtype F32: it must be F8_E4M3"),
        ("gptq", {}, filled("g_idx", 2), "g_idx names groups that are not there"),
        ("gptq", {}, filled("g_idx", -1), "g_idx names groups that are not there"),
        ("nvfp4", {}, filled("weight_global_scale", float("inf")), "weight_global_scale is inf: a scale must be"),
        ("nvfp4", {}, filled("weight_global_scale", float("nan")), "weight_global_scale is nan"),
    ],
)
def test_broken_tensors_are_named(
    floats: Path, tmp_path: Path, name: str, options: dict[str, Any], change: Change, message: str
) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", name, **options)
    with pytest.raises(ModelInvalid, match=rf"tensor {GATE}\.{message.format(GATE)}"):
        opened(folder, change)


def opened(folder: Path, change: Change) -> Any:
    """As the loader opens it, with every zero point read."""
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")
    files = read(folder, "tiny")
    return open_source(files.weights, files.format, files.spec.quantization)


@needs_library
@pytest.mark.parametrize(("name", "scale"), [("awq", "scales"), ("packed", "weight_scale")])
def test_a_scale_that_is_no_number_is_named(floats: Path, tmp_path: Path, name: str, scale: str) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", name)
    source = opened(folder, filled(scale, float("nan")))
    with pytest.raises(ModelInvalid, match=rf"tensor {GATE}\.weight of type Q4_. has scales that float16 cannot hold"):
        load(read(folder, "tiny").spec, source, PackedForm(), context=64)


@pytest.mark.parametrize(("name", "tensor"), [("gptq", "qweight"), ("fp8", "weight_scale")])
def test_quantized_weights_without_a_config(floats: Path, tmp_path: Path, name: str, tensor: str) -> None:
    folder, _ = quantized_checkpoints.write(floats, tmp_path / "model", name)
    config = json.loads((folder / "config.json").read_text())
    del config["quantization_config"]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelInvalid, match=rf"\.{tensor} is of quantized weights, and .* no quantization_config"):
        opened(folder, lambda tensors: None)
