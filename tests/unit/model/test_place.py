"""Slices for the ranks of tensor parallelism: put together again they are the whole."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType
from torch import Tensor

from helpers import tiny_gguf, tiny_models
from penstock.kernels.reference.dense import to_dense
from penstock.model import PackedForm, open_source, registry
from penstock.model.architectures.llama import Llama
from penstock.model.weights import loader
from penstock.model.weights.dense_form import DenseForm
from penstock.model.weights.form import DeviceForm
from penstock.model.weights.loaded import Weights
from penstock.model.weights.place import WHOLE, Shard, placements
from penstock.model.weights.source import Rows, Span
from penstock.store.hf_config import spec_from_config
from penstock.store.spec import ModelSpec

DENSE = DenseForm(torch.bfloat16, torch.device("cpu"))
BY_COLUMNS = ("output", "down")


def sections(name: str, spec: ModelSpec) -> list[int]:
    """Rows of q, k and v, or of gate and up."""
    q, kv, ffn = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim, spec.intermediate_size
    return {"qkv": [q, kv, kv], "gate_up": [ffn, ffn]}[name.removesuffix("_bias")]


def joined(name: str, ranks: list[Tensor], spec: ModelSpec) -> Tensor:
    part = name.split(".")[-1]
    if part in BY_COLUMNS:
        return torch.cat(ranks, dim=1)
    if part.removesuffix("_bias") in ("qkv", "gate_up"):
        shares = [rank.split([rows // len(ranks) for rows in sections(part, spec)]) for rank in ranks]
        return torch.cat([piece for section in zip(*shares, strict=True) for piece in section])
    if part in ("embedding", "head"):
        return torch.cat(ranks)
    assert all(rank.equal(ranks[0]) for rank in ranks)  # whole on every rank
    return ranks[0]


def tensors(weights: Weights) -> dict[str, Tensor]:
    matrices = {name: to_dense(weight) for name, weight in weights.matrices.items()}
    return matrices | {name: torch.as_tensor(vector) for name, vector in weights.vectors.items()}


def check(spec: ModelSpec, paths: list[Path], form: str, device_form: DeviceForm) -> None:
    def load(shard: Shard) -> dict[str, Tensor]:
        source, weight_map = open_source(paths, form), registry.architecture(spec.architecture).weight_map  # type: ignore[arg-type]
        return tensors(loader.load(weight_map, source, spec, device_form, shard))

    whole, ranks = load(WHOLE), [load(Shard(rank, 2)) for rank in range(2)]
    for name, tensor in whole.items():
        assert joined(name, [rank[name] for rank in ranks], spec).equal(tensor), name
    qkv = ranks[0]["layers.0.qkv"]
    assert qkv.shape == (whole["layers.0.qkv"].shape[0] // 2, spec.hidden_size)
    assert ranks[0]["layers.0.down"].shape == (spec.hidden_size, spec.intermediate_size // 2)


def spec_of(folder: Path) -> ModelSpec:
    return spec_from_config(json.loads((folder / "config.json").read_text()), None, "tiny")


@pytest.mark.parametrize("form", [DENSE, PackedForm(), PackedForm("int8")], ids=["dense", "packed", "int8"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3"])  # qwen2 has biases; phi3's tensors are fused in the file
def test_two_ranks_together_have_all_weights(family: str, form: DeviceForm, tmp_path: Path) -> None:
    folder = tiny_models.make(family, tmp_path, intermediate_size=128)
    check(spec_of(folder), sorted(folder.glob("*.safetensors")), "safetensors", form)


@pytest.mark.parametrize("form", [DENSE, PackedForm()], ids=["dense", "packed"])
def test_quantized_blocks_are_sliced_and_permuted(form: DeviceForm, tmp_path: Path) -> None:
    folder = tiny_models.make("llama", tmp_path, intermediate_size=128)
    path = tiny_gguf.convert(folder, tmp_path / "tiny.gguf", GGMLQuantizationType.Q8_0)
    check(spec_of(folder), [path], "gguf", form)


def test_ranks_beyond_the_kv_heads_share_them(tmp_path: Path) -> None:
    spec = spec_of(tiny_models.make("llama", tmp_path))  # 4 heads, 2 KV heads

    def rows(rank: int) -> list[Span]:
        placed = {one.name: one for one in placements(Llama.weight_map.parameters, "hf", spec, Shard(rank, 4))}
        return [span for piece in placed["layers.0.qkv"].pieces for span in piece.region.rows]

    assert [rows(rank)[0] for rank in range(4)] == [(0, 16), (16, 32), (32, 48), (48, 64)]
    assert [rows(rank)[1] for rank in range(4)] == [(0, 16), (0, 16), (16, 32), (16, 32)]


def test_heads_are_not_divided(tmp_path: Path) -> None:
    spec = spec_of(tiny_models.make("llama", tmp_path))  # 4 heads
    with pytest.raises(ValueError, match=r"4 \(q\) cannot be divided among 3 ranks"):
        list(placements(Llama.weight_map.parameters, "hf", spec, Shard(0, 3)))


def test_blocks_are_not_divided() -> None:
    rows = Rows(np.zeros((4, 2 * 34), dtype=np.uint8), "Q8_0", 64, is_blocks=True)
    assert rows.cut_columns(32, 64).data.shape == (4, 34)
    with pytest.raises(ValueError, match="columns 0 to 16 are not whole blocks of Q8_0"):
        rows.cut_columns(0, 16)
