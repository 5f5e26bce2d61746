"""Static scales of an fp8 KV cache, by the names that checkpoints have for them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from penstock.errors import ModelInvalid
from penstock.model.weights.kv_scales import KvScales, read_kv_scales

NAMES = [
    ("self_attn.k_scale", "self_attn.v_scale"),
    ("self_attn.attn.k_scale", "self_attn.attn.v_scale"),
    ("self_attn.k_proj.k_scale", "self_attn.v_proj.v_scale"),
]


def written(path: Path, tensors: dict[str, torch.Tensor]) -> list[Path]:
    others = {"model.layers.0.self_attn.k_proj.weight_scale": torch.ones(1), "model.norm.weight": torch.ones(4)}
    save_file(others | tensors, path / "model.safetensors", {"format": "pt"})
    return [path / "model.safetensors"]


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("prefix", ["model", "model.language_model"])
def test_the_names_of_published_checkpoints(
    tmp_path: Path, names: tuple[str, str], dtype: torch.dtype, prefix: str
) -> None:
    tensors = {
        f"{prefix}.layers.{layer}.{name}": torch.tensor(0.25 * (layer + 1) + number, dtype=dtype)
        for layer in range(12)
        for number, name in enumerate(names)
    }
    expected = [KvScales(0.25 * (layer + 1), 0.25 * (layer + 1) + 1) for layer in range(12)]
    assert read_kv_scales(written(tmp_path, tensors), 12) == expected


def test_one_scale_for_both(tmp_path: Path) -> None:
    tensors = {f"model.layers.{layer}.self_attn.kv_scale": torch.tensor([0.5]) for layer in range(2)}
    assert read_kv_scales(written(tmp_path, tensors), 2) == [KvScales(0.5, 0.5)] * 2


def test_scales_that_are_missing_or_of_single_heads(tmp_path: Path) -> None:
    tensors = {f"model.layers.{layer}.self_attn.{what}_scale": torch.tensor(0.5) for layer in (0, 1) for what in "kv"}
    assert read_kv_scales(written(tmp_path, tensors), 3) is None
    assert read_kv_scales(written(tmp_path, {}), 1) is None
    assert read_kv_scales(written(tmp_path, tensors | {"model.layers.1.self_attn.k_scale": torch.ones(4)}), 2) is None


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_scale_that_is_none(tmp_path: Path, bad: float) -> None:
    tensors = {f"model.layers.0.self_attn.{what}_scale": torch.tensor(bad) for what in "kv"}
    with pytest.raises(
        ModelInvalid, match=r"model\.layers\.0\.self_attn\.[kv]_scale is .*: a scale must be a positive"
    ):
        read_kv_scales(written(tmp_path, tensors), 1)
