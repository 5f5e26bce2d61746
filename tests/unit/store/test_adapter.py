"""What adapters are accepted, and how the others are refused."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from helpers.adapter_samples import LINEAR, convert_adapter, write_adapter
from helpers.model_specs import small_spec
from penstock.errors import ModelInvalid, ModelNotFound, PenstockError, WeightsMismatch
from penstock.store.adapter import check_adapter, open_adapter

SPEC = small_spec()


def edit_config(folder: Path, **fields: Any) -> Path:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    return folder


def rewrite_tensors(folder: Path, change: Any) -> Path:
    path = folder / "adapter_model.safetensors"
    save_file(change(load_file(path)), path)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_adapter(tmp_path / "style", SPEC)


def test_an_adapter_of_all_linear_layers_is_described(folder: Path) -> None:
    files = open_adapter(folder)
    check_adapter(files.spec, SPEC)
    assert (files.path, files.weights) == (folder, folder / "adapter_model.safetensors")
    spec = files.spec
    assert (spec.name, spec.format, spec.rank, spec.alpha, spec.base) == ("style", "peft", 4, 8.0, "tiny")
    assert spec.modules == ("q", "k", "v", "o", "gate", "up", "down")
    assert len(spec.low_ranks) == 7 * SPEC.num_layers
    assert {one.scale for one in spec.low_ranks} == {2.0}
    assert spec.num_bytes == sum(tensor.nbytes for tensor in load_file(files.weights).values())


def test_the_version_follows_content_and_config(folder: Path) -> None:
    first = open_adapter(folder).spec.version
    assert open_adapter(folder).spec.version == first
    edit_config(folder, lora_alpha=16)
    second = open_adapter(folder).spec.version
    rewrite_tensors(folder, lambda tensors: {name: values + 1 for name, values in tensors.items()})
    assert len({first, second, open_adapter(folder).spec.version}) == 3


def test_ranks_and_alphas_by_pattern(tmp_path: Path) -> None:
    folder = write_adapter(
        tmp_path / "a",
        SPEC,
        rank=4,
        alpha=8,
        modules=("q_proj", "v_proj"),
        rank_pattern={"q_proj": 2},
        alpha_pattern={r"layers\.1\.self_attn\.v_proj": 12, "q_pro": 99},
    )
    scales = {(one.layer, one.module): (one.rank, one.scale) for one in open_adapter(folder).spec.low_ranks}
    assert scales == {(0, "q"): (2, 4.0), (1, "q"): (2, 4.0), (0, "v"): (4, 2.0), (1, "v"): (4, 3.0)}
    assert open_adapter(folder).spec.rank == 4


def test_rslora_divides_by_the_root_of_the_rank(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", SPEC, rank=16, alpha=8, use_rslora=True)
    assert {one.scale for one in open_adapter(folder).spec.low_ranks} == {2.0}


def test_head_and_embedding(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", SPEC, modules=("lm_head", "embed_tokens"))
    files = open_adapter(folder)
    check_adapter(files.spec, SPEC)
    assert files.spec.modules == ("head", "embed")


def test_tied_adapters_of_head_and_embedding_are_refused(tmp_path: Path) -> None:
    options = {"ensure_weight_tying": True}
    check_adapter(open_adapter(write_adapter(tmp_path / "a", SPEC, modules=("q_proj",), **options)).spec, SPEC)
    with pytest.raises(ModelInvalid, match="ensure_weight_tying is set"):
        open_adapter(write_adapter(tmp_path / "b", SPEC, modules=("lm_head",), **options))


def test_tables_of_the_base_that_peft_saves_must_have_its_size(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", SPEC, modules=("q_proj",))
    table = {"base_model.model.model.embed_tokens.base_layer.weight": np.zeros((100, 64), np.float32)}
    spec = open_adapter(rewrite_tensors(folder, lambda tensors: tensors | table)).spec
    check_adapter(spec, SPEC)
    with pytest.raises(WeightsMismatch, match=r"table \(embed\) of shape \[100, 64\].*vocabularies of another size"):
        check_adapter(spec, small_spec(vocab_size=99))


def test_a_gguf_is_described_as_its_folder(tmp_path: Path) -> None:
    folder = write_adapter(tmp_path / "a", SPEC, modules=(*LINEAR, "lm_head", "embed_tokens"))
    path = convert_adapter(folder, tmp_path / "style.gguf", SPEC)
    files, original = open_adapter(path), open_adapter(folder)
    check_adapter(files.spec, SPEC)
    assert (files.spec.name, files.spec.format, files.spec.architecture) == ("style", "gguf", "llama")
    assert files.weights == path

    def facts(spec: Any) -> set[tuple[Any, ...]]:
        return {(one.layer, one.module, one.rank, one.scale, one.inputs, one.outputs) for one in spec.low_ranks}

    assert facts(files.spec) == facts(original.spec)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"use_dora": True}, "use_dora is set: DoRA is not supported"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save is set"),
        ({"bias": "lora_only"}, "bias is 'lora_only'"),
        ({"lora_bias": True}, "lora_bias is set"),
        ({"peft_type": "IA3"}, "peft_type is IA3"),
        ({"init_lora_weights": "pissa_niter_16"}, "changes the weights of the base"),
        ({"target_parameters": ["mlp.experts.down_proj"]}, "experts"),
        ({"r": 8}, "rank 8 in the config"),
        ({"r": "4"}, "r must be an integer"),
        ({"lora_alpha": float("inf")}, "not valid JSON"),
        ({"lora_alpha": None}, "lora_alpha is missing"),
        ({"alpha_pattern": {"(": 1}}, "not an expression"),
        ({"alpha_pattern": {"q_proj": "x"}}, "alpha_pattern.q_proj must be a number"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern must be a mapping"),
    ],
)
def test_configs_that_are_refused(folder: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelInvalid, match=message) as error:
        open_adapter(edit_config(folder, **fields))
    assert error.value.param == "adapter"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("base_model.model.model.layers.0.mlp.experts.3.gate_proj.lora_A.weight", "cannot have an adapter here"),
        ("base_model.model.model.layers.0.block_sparse_moe.gate.lora_A.weight", "cannot have an adapter here"),
        ("base_model.model.score.lora_A.weight", "cannot have an adapter here"),
        ("base_model.model.model.layers.0.self_attn.q_proj.lora_magnitude_vector", "not part of a LoRA"),
        ("base_model.model.model.norm.weight", "not part of a LoRA"),
        ("model.layers.0.self_attn.q_proj.lora_A.default.weight", "twice"),
        ("x" * 100_000, "not part of a LoRA"),
    ],
)
def test_tensors_that_are_refused(folder: Path, name: str, message: str) -> None:
    rewrite_tensors(folder, lambda tensors: tensors | {name: np.zeros((4, 64), np.float32)})
    with pytest.raises(ModelInvalid, match=message) as error:
        open_adapter(folder)
    assert len(error.value.message) < 1000


def test_half_a_pair_a_convolution_and_integers_are_refused(folder: Path) -> None:
    tensors = load_file(folder / "adapter_model.safetensors")
    name = "base_model.model.model.layers.1.mlp.up_proj.lora_{}.weight"
    for change, message in (
        ({key: values for key, values in tensors.items() if key != name.format("B")}, "has no lora_B"),
        (tensors | {name.format("A"): np.zeros((4, 64, 3), np.float32)}, "convolutions"),
        (tensors | {name.format("A"): np.zeros((4, 64), np.int8)}, "dtype I8"),
        ({}, "has no tensors"),
    ):
        save_file(change, folder / "adapter_model.safetensors")
        with pytest.raises(ModelInvalid, match=message):
            open_adapter(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layers": 1}, "it changes layer 1, and other has 1; the adapter is made for tiny"),
        ({"hidden_size": 128}, "q of layer 0 takes 64 inputs to 64 outputs in the adapter, and 128 to 64 in other"),
        ({"intermediate_size": 100}, "gate of layer 0 takes 64 inputs to 96 outputs"),
        ({"architecture": "phi3"}, r"other \(phi3\) has no module"),
    ],
)
def test_an_adapter_of_another_base_is_refused(folder: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(WeightsMismatch, match=message) as error:
        check_adapter(open_adapter(folder).spec, small_spec(name="other", **changes))
    assert error.value.param == "adapter"


def test_ranks_up_to_256_fit(tmp_path: Path) -> None:
    check_adapter(open_adapter(write_adapter(tmp_path / "a", SPEC, rank=256, modules=("q_proj",))).spec, SPEC)
    large = open_adapter(write_adapter(tmp_path / "b", SPEC, rank=257, modules=("q_proj",))).spec
    with pytest.raises(WeightsMismatch, match="rank 257; 256 is the largest"):
        check_adapter(large, SPEC)


def test_what_is_no_adapter(tmp_path: Path, folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="no such file"):
        open_adapter(tmp_path / "absent")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match=r"it has no adapter_config\.json"):
        open_adapter(tmp_path / "empty")
    with pytest.raises(ModelInvalid, match="neither a folder"):
        open_adapter(folder / "adapter_config.json")
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(ModelInvalid, match="a pickle, which can run code"):
        open_adapter(folder)
    (folder / "adapter_model.bin").unlink()
    with pytest.raises(ModelNotFound, match=r"has no adapter_model\.safetensors"):
        open_adapter(folder)


def test_hostile_files_are_refused_and_nothing_else_happens(tmp_path: Path, folder: Path) -> None:
    """Bits flipped and files cut anywhere: an error of ours, or an adapter that still fits."""
    gguf = convert_adapter(folder, tmp_path / "a.gguf", SPEC)
    chance, params = random.Random(0), set()
    for path, opened in (
        (folder / "adapter_model.safetensors", folder),
        (folder / "adapter_config.json", folder),
        (gguf, gguf),
    ):
        content = path.read_bytes()
        for _ in range(150):
            changed = bytearray(content[: chance.randrange(len(content) + 1)] if chance.random() < 0.3 else content)
            for _ in range(chance.randrange(4) if changed else 0):
                changed[chance.randrange(min(len(changed), 4000))] = chance.randrange(256)
            path.write_bytes(changed)
            try:
                check_adapter(open_adapter(opened).spec, SPEC)
            except PenstockError as error:
                params.add(error.param)
        path.write_bytes(content)
    assert params == {"adapter"}


def test_large_headers_are_not_read(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes((17 << 20).to_bytes(8, "little"))
    os.truncate(path, 20 << 20)
    with pytest.raises(ModelInvalid, match="does not start with the length of a header"):
        open_adapter(folder)
    (folder / "adapter_config.json").write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(ModelInvalid, match="more than 1048576 bytes"):
        open_adapter(folder)
