"""Weights into parameters: fused in the right order, in the right type, and not one tensor too few or too many."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from helpers import tiny_models
from penstock.errors import ModelInvalid, WeightsMismatch
from penstock.model import Decoder, PackedForm, open_source
from penstock.model.architectures.llama import Llama
from penstock.model.load_dense import load_dense
from penstock.model.weights import loader
from penstock.model.weights.dense_form import DenseForm
from penstock.store.hf_config import spec_from_config
from penstock.store.spec import ModelSpec

CPU = torch.device("cpu")
Change = Callable[[dict[str, Tensor]], None]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untied, so that there is a head of its own."""
    return tiny_models.make("llama", tmp_path_factory.mktemp("model"), tie_word_embeddings=False)


def spec_of(folder: Path, **changes: object) -> ModelSpec:
    return spec_from_config(json.loads((folder / "config.json").read_text()) | changes, None, "tiny")


def changed(folder: Path, path: Path, change: Change) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, path)
    return path


def load_path(spec: ModelSpec, path: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return load_dense(spec, open_source([path], "safetensors"), dtype=dtype, device=CPU, context=64)


def test_parts_are_fused_in_order(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    source = open_source([folder / "model.safetensors"], "safetensors")
    weights = loader.load(Llama.weight_map, source, spec_of(folder), DenseForm(torch.bfloat16, CPU))
    prefix = "model.layers.1.self_attn."
    fused = torch.cat([tensors[f"{prefix}{name}_proj.weight"] for name in "qkv"]).bfloat16()
    norm = weights.vectors["layers.1.mlp_norm"]
    assert weights.matrices["layers.1.qkv"].dense.equal(fused)
    assert norm.equal(tensors["model.layers.1.post_attention_layernorm.weight"])
    assert norm.dtype == torch.float32
    assert weights.matrices["head"].dense.equal(tensors["lm_head.weight"].bfloat16())


def test_threads_load_the_same_and_release_each_tensor_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(folder)
    made, released = [], []
    for threads in (1, 3):
        source = open_source([folder / "model.safetensors"], "safetensors")
        release = source.release
        monkeypatch.setattr(source, "release", lambda name, release=release: (released.append(name), release(name)))
        made.append(loader.load(Llama.weight_map, source, spec, PackedForm(), threads=threads))
    one, several = made
    assert list(one.matrices) == list(several.matrices)
    for name, weight in one.matrices.items():
        assert np.array_equal(weight.packed.unpack(), several.matrices[name].packed.unpack())
    for name, vector in one.vectors.items():
        assert np.array_equal(vector, several.vectors[name])
    names = sorted(load_file(folder / "model.safetensors"))
    assert sorted(released[: len(names)]) == sorted(released[len(names) :]) == names


def test_bytes_of_the_weights(folder: Path, tmp_path: Path) -> None:
    untied = load_path(spec_of(folder), folder / "model.safetensors", torch.bfloat16)
    tied = load_path(spec_of(folder, tie_word_embeddings=True), folder / "model.safetensors", torch.bfloat16)
    norms = 7 * 64  # float32
    total = sum(tensor.numel() for tensor in load_file(folder / "model.safetensors").values())
    assert untied.num_bytes == 2 * total + 2 * norms
    assert tied.head is tied.embedding
    assert untied.num_bytes - tied.num_bytes == 2 * tiny_models.VOCAB * 64


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("model.layers.2.mlp.up_proj.weight"), "tiny lack model.layers.2.mlp.up_proj.weight"),
        (lambda t: t.pop("lm_head.weight"), "tiny lack lm_head.weight"),
        (lambda t: [t.pop(name) for name in list(t) if ".mlp." in name], "gate_proj.weight and 4 more"),
        (
            lambda t: t.update({"model.layers.3.mlp.up_proj.weight": torch.zeros(96, 64)}),
            "llama model does not use: model.layers.3.mlp.up_proj.weight",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)}),
            "does not use: model.layers.0.self_attn.q_proj.bias",
        ),
        (
            lambda t: t.update({"model.norm.weight": torch.zeros(63)}),
            r"model.norm.weight has shape (63,), its config asks for (64,)",
        ),
        (
            lambda t: t.update({"model.layers.0.self_attn.k_proj.weight": torch.zeros(64, 32)}),
            r"k_proj.weight has shape (64, 32), its config asks for (32, 64)",
        ),
    ],
)
def test_mismatch_names_the_tensor(folder: Path, tmp_path: Path, change: Change, message: str) -> None:
    path = changed(folder, tmp_path / "changed.safetensors", change)
    with pytest.raises(WeightsMismatch, match=re.escape(message)) as caught:
        load_path(spec_of(folder), path)
    assert caught.value.param == "model"


def test_harmless_extras_are_ignored(folder: Path, tmp_path: Path) -> None:
    extras = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    path = changed(folder, tmp_path / "extras.safetensors", lambda t: t.update(extras))
    load_path(spec_of(folder), path)
    load_path(spec_of(folder, tie_word_embeddings=True), path)  # the head is there and not needed


def test_integers_are_no_weights(folder: Path, tmp_path: Path) -> None:
    def quantize(tensors: dict[str, Tensor]) -> None:
        tensors["model.norm.weight"] = torch.zeros(64, dtype=torch.int8)

    path = changed(folder, tmp_path / "integers.safetensors", quantize)
    with pytest.raises(ModelInvalid, match=r"model\.norm\.weight has dtype I8"):
        load_path(spec_of(folder), path)


def test_text_part_of_a_checkpoint_with_vision(tmp_path: Path) -> None:
    folder = tiny_models.make("gemma3", tmp_path / "text")
    tensors = {f"language_model.{name}": t for name, t in load_file(folder / "model.safetensors").items()}
    tensors["vision_tower.encoder.layers.0.mlp.fc1.bias"] = torch.zeros(3)
    tensors["multi_modal_projector.mm_soft_emb_norm.weight"] = torch.zeros(3)
    save_file(tensors, tmp_path / "both.safetensors")
    spec = spec_of(folder)
    both, text = load_path(spec, tmp_path / "both.safetensors"), load_path(spec, folder / "model.safetensors")
    assert both.embedding.dense.equal(text.embedding.dense)
    assert both.num_bytes == text.num_bytes


def test_odd_offsets_in_a_file(folder: Path, tmp_path: Path) -> None:
    """The format lets a tensor begin at any byte."""
    tensors = load_file(folder / "model.safetensors")
    header, data = {}, b""
    for name, tensor in {"rotary_emb.inv_freq": torch.zeros(3, dtype=torch.uint8), **tensors}.items():
        raw = tensor.numpy().tobytes()
        dtype = "U8" if tensor.dtype == torch.uint8 else "F32"
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path = tmp_path / "odd.safetensors"
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert load_path(spec_of(folder), path).embedding.dense.equal(tensors["model.embed_tokens.weight"])
