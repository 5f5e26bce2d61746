from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.store_samples import write_hf_folder
from penstock.errors import ModelInvalid
from penstock.store import hf_folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_hf_folder(tmp_path / "model")


def put(folder: Path, name: str, content: Any) -> None:
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_bare_folder(folder: Path) -> None:
    files = hf_folder.read(folder, "mine")
    assert (files.name, files.format) == ("mine", "safetensors")
    assert files.weights == (folder / "model.safetensors",)
    assert (files.spec.name, files.spec.num_layers, files.spec.end_tokens) == ("mine", 2, (2,))
    assert (files.tokenizer, files.chat_template, files.special_tokens, files.sampling) == (None, None, {}, {})


def test_weights_are_not_opened(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"anything")
    assert hf_folder.read(folder, "x").weights == (folder / "model.safetensors",)


def test_shards_are_those_of_the_index(folder: Path) -> None:
    names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = {"metadata": {}, "weight_map": {"a": names[0], "b": names[1], "c": names[0]}}
    put(folder, "model.safetensors.index.json", index)
    put(folder, names[0], "")
    with pytest.raises(ModelInvalid, match=f"lacks {names[1]}"):
        hf_folder.read(folder, "x")
    put(folder, names[1], "")
    assert hf_folder.read(folder, "x").weights == (folder / names[0], folder / names[1])
    put(folder, "model.safetensors.index.json", {"weight_map": {"a": "../elsewhere.safetensors"}})
    with pytest.raises(ModelInvalid, match="outside its folder"):
        hf_folder.read(folder, "x")


def test_what_stands_in_the_place_of_weights_is_named(folder: Path) -> None:
    weights = folder / "model.safetensors"
    weights.unlink()
    weights.mkdir()
    with pytest.raises(ModelInvalid, match=r"model\.safetensors is a folder, not a file of weights"):
        hf_folder.read(folder, "x")
    weights.rmdir()
    weights.symlink_to("gone")
    with pytest.raises(ModelInvalid, match=r"model\.safetensors is a link to a file that is not there"):
        hf_folder.read(folder, "x")


def test_the_same_weights_in_another_layout_are_left_alone(folder: Path) -> None:
    put(folder, "consolidated.safetensors", "")
    assert hf_folder.read(folder, "x").weights == (folder / "model.safetensors",)


def test_config_alone_is_enough_for_those_who_say_so(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert hf_folder.read(folder, "x", weights=False).weights == ()
    with pytest.raises(ModelInvalid, match="has no weights"):
        hf_folder.read(folder, "x")
    put(folder, "pytorch_model.bin", "")
    with pytest.raises(ModelInvalid, match="pickles"):
        hf_folder.read(folder, "x")
    put(folder, "model.Q4_0.gguf", "")
    with pytest.raises(ModelInvalid, match=r"model\.Q4_0\.gguf: name that file itself"):
        hf_folder.read(folder, "x")


def test_generation_config(folder: Path) -> None:
    generation = {
        "do_sample": True,
        "temperature": 0.7,
        "top_k": 20,
        "top_p": 0.8,
        "repetition_penalty": 1.05,
        "eos_token_id": [5, 6],
    }
    put(folder, "generation_config.json", generation)
    files = hf_folder.read(folder, "x")
    assert files.spec.end_tokens == (5, 6)
    assert files.sampling == {"temperature": 0.7, "top_k": 20, "top_p": 0.8, "repetition_penalty": 1.05}
    assert isinstance(files.sampling["top_k"], int)
    put(folder, "generation_config.json", {**generation, "do_sample": False})
    assert hf_folder.read(folder, "x").sampling == {"repetition_penalty": 1.05}


def test_chat_template_wherever_it_is(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    put(folder, "tokenizer_config.json", {"chat_template": named})
    assert hf_folder.read(folder, "x").chat_template == "D"
    put(folder, "tokenizer_config.json", {"chat_template": "plain"})
    assert hf_folder.read(folder, "x").chat_template == "plain"
    put(folder, "chat_template.json", {"chat_template": "of the processor"})
    assert hf_folder.read(folder, "x").chat_template == "of the processor"
    put(folder, "chat_template.jinja", "{{ bos_token }}é")
    assert hf_folder.read(folder, "x").chat_template == "{{ bos_token }}é"


def test_special_tokens(folder: Path) -> None:
    put(folder, "tokenizer_config.json", {"bos_token": "<s>", "eos_token": {"content": "</s>"}, "pad_token": None})
    put(folder, "special_tokens_map.json", {"bos_token": "other", "unk_token": {"content": "<unk>"}})
    tokens = hf_folder.read(folder, "x").special_tokens
    assert tokens == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


def test_tokenizer(folder: Path) -> None:
    put(folder, "tokenizer.model", "")
    with pytest.raises(ModelInvalid, match=r"tokenizer\.model but no tokenizer\.json"):
        hf_folder.read(folder, "x")
    put(folder, "tokenizer.json", "{}")
    assert hf_folder.read(folder, "x").tokenizer == folder / "tokenizer.json"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", "{", "not valid JSON"),
        ("config.json", "[]", "does not hold a JSON object"),
        ("config.json", '{"a":' + "[" * 100_000, "not valid JSON"),
        ("config.json", "{}", "model_type is missing"),
        ("generation_config.json", "{,}", "not valid JSON"),
        ("generation_config.json", '{"do_sample": true, "top_k": "many"}', "top_k must be an integer"),
        ("tokenizer_config.json", "nonsense", "not valid JSON"),
        ("tokenizer_config.json", '{"chat_template": 3}', "chat template is not text"),
        ("model.safetensors.index.json", '{"weight_map": []}', "weight_map must be a mapping"),
    ],
)
def test_broken_files_are_named(folder: Path, name: str, content: str, message: str) -> None:
    put(folder, name, content)
    with pytest.raises(ModelInvalid, match=message):
        hf_folder.read(folder, "x")


def test_not_utf8(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff\xfe")
    with pytest.raises(ModelInvalid, match=r"cannot read .*chat_template\.jinja"):
        hf_folder.read(folder, "x")
    (folder / "chat_template.jinja").unlink()
    (folder / "config.json").write_bytes(b'{"model_type": "\xff"}')
    with pytest.raises(ModelInvalid, match="not valid JSON"):
        hf_folder.read(folder, "x")


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(ModelInvalid, match=r"has no config\.json"):
        hf_folder.read(tmp_path, "x")


def test_modelopt_may_describe_the_weights_in_a_file_of_its_own(folder: Path) -> None:
    put(folder, "hf_quant_config.json", {"quantization": {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"}})
    found = hf_folder.read(folder, "x").spec.quantization
    assert found is not None
    assert (found.label, found.kv_scheme) == ("modelopt nvfp4", "fp8")
    config = json.loads((folder / "config.json").read_text())
    put(folder, "config.json", {**config, "quantization_config": {"quant_method": "fp8"}})
    assert hf_folder.read(folder, "x").spec.weights == "fp8 fp8"
    put(folder, "config.json", config)
    put(folder, "hf_quant_config.json", {"quantization": 4})
    with pytest.raises(ModelInvalid, match=r"hf_quant_config\.json: quantization must be a mapping"):
        hf_folder.read(folder, "x")
