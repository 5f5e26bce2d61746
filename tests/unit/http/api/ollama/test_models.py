from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from ollama import ListResponse, ProcessResponse, ShowResponse

from helpers.model_specs import small_spec
from helpers.schema_tables import assert_matches_schema
from penstock.deployment.protocol import ModelCard, ServedModel
from penstock.deployment.registry import ModelRegistry
from penstock.errors import ModelNotFound
from penstock.http.api.ollama.models import LocalDetails, encode_running, find_served, format_parameters, with_tag
from penstock.http.api.ollama.response_bodies import OllamaModelInfo, OllamaModelList, OllamaRunningList
from penstock.prompt.chat_format import ChatFormat
from penstock.prompt.template import ChatTemplate
from penstock.store.files import ModelFiles

TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
FACTS = {"device": "cpu", "weights_bytes": 1000, "kv_bytes": 24}
SPEC = small_spec(vocab_size=320, num_layers=3, context=4096, norm_eps=1e-5, weights="bfloat16")


@pytest.fixture
def files(tmp_path: Path) -> ModelFiles:
    weights = (tmp_path / "1.safetensors", tmp_path / "2.safetensors")
    for number, path in enumerate(weights):
        path.write_bytes(b"x" * 10)
        os.utime(path, (0, 1_700_000_000 + number))
    return ModelFiles(
        name="tiny",
        format="safetensors",
        weights=weights,
        spec=SPEC,
        chat_template=TEMPLATE,
        sampling={"temperature": 0.2, "repetition_penalty": 1.1},
        license="MIT",
    )


def served(files: ModelFiles, **more: Any) -> LocalDetails:
    chat_format = ChatFormat(ChatTemplate(files.chat_template, {})) if files.chat_template is not None else None
    return LocalDetails(files, **{"context": 512, "chat_format": chat_format, "created": 0, **more})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [("m", "m:latest"), ("m:7b", "m:7b"), ("a/m", "a/m:latest"), ("host:80/m", "host:80/m:latest"), ("a/m:1", "a/m:1")],
)
def test_the_tag_that_is_implied(name: str, wanted: str) -> None:
    assert with_tag(name) == wanted


def test_only_served_models_are_there() -> None:
    models = ModelRegistry(cast(ServedModel, SimpleNamespace(card=ModelCard(name=name))) for name in ("tiny", "a:1b"))
    assert find_served("tiny", models) is find_served("tiny:latest", models)
    for name in ("tiny:7b", "other", "", "TINY", "a"):
        with pytest.raises(ModelNotFound, match='not found; this server has "tiny:latest", "a:1b"'):
            find_served(name, models)


def listed(details: LocalDetails) -> Any:
    return json.loads(msgspec.json.encode(OllamaModelList(models=[details.listed()])))


def running(details: LocalDetails, facts: dict[str, Any]) -> Any:
    return json.loads(msgspec.json.encode(OllamaRunningList(models=[details.running(facts)])))


def test_the_list(files: ModelFiles) -> None:
    data = listed(served(files))
    assert_matches_schema(OllamaModelList, data)
    ListResponse(**data)
    (model,) = data["models"]
    assert model == {
        "name": "tiny:latest",
        "model": "tiny:latest",
        "modified_at": "2023-11-14T22:13:21Z",  # of the newest file
        "size": 20,
        "digest": model["digest"],
        "details": {
            "parent_model": "",
            "format": "safetensors",
            "family": "llama",
            "families": ["llama"],
            "parameter_size": "134K",
            "quantization_level": "BF16",
        },
    }
    assert len(bytes.fromhex(model["digest"])) == 32


def test_the_digest_is_of_what_the_model_is(files: ModelFiles) -> None:
    first = served(files).digest
    assert served(files, context=9).digest == first
    for changed in ({"name": "other"}, {"chat_template": "x"}, {"weights": files.weights[:1]}):
        assert served(msgspec.structs.replace(files, **changed)).digest != first


def test_a_model_without_weights(files: ModelFiles) -> None:
    (model,) = listed(served(msgspec.structs.replace(files, weights=()), created=1))["models"]
    assert (model["size"], model["modified_at"]) == (0, "1970-01-01T00:00:01Z")


def test_what_is_loaded(files: ModelFiles) -> None:
    data = running(served(files), FACTS)
    assert_matches_schema(OllamaRunningList, data)
    (model,) = ProcessResponse(**data).models
    assert (model.name, model.size, model.size_vram, model.context_length) == ("tiny:latest", 1024, 0, 512)
    on_gpu = running(served(files), {**FACTS, "device": "cuda"})
    assert on_gpu["models"][0]["size_vram"] == 1024
    assert encode_running([], lambda model: None) == b'{"models":[]}'


def test_all_that_is_known(files: ModelFiles) -> None:
    data = json.loads(served(files).shown())
    assert_matches_schema(OllamaModelInfo, data)
    shown = ShowResponse(**data)
    assert (shown.license, shown.template) == ("MIT", TEMPLATE)
    assert [line.split() for line in (shown.parameters or "").splitlines()] == [
        ["num_ctx", "512"], ["temperature", "0.2"], ["repeat_penalty", "1.1"],
    ]  # fmt: skip
    assert (shown.modelfile or "").startswith("FROM tiny\nPARAMETER num_ctx 512\n")
    assert data["model_info"] == {
        "general.architecture": "llama",
        "general.basename": "tiny",
        "general.parameter_count": 133_568,
        "llama.context_length": 512,  # what a request can use
        "llama.embedding_length": 64,
        "llama.block_count": 3,
        "llama.feed_forward_length": 96,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.key_length": 16,
        "llama.attention.value_length": 16,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 16,
        "llama.rope.freq_base": 10_000.0,
        "llama.vocab_size": 320,
    }


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        (None, ["completion", "embedding"]),
        (TEMPLATE, ["completion", "tools", "embedding"]),
        (TEMPLATE + "<think></think>", ["completion", "tools", "thinking", "embedding"]),
    ],
)
def test_what_it_can_do(files: ModelFiles, template: str | None, wanted: list[str]) -> None:
    model = served(msgspec.structs.replace(files, chat_template=template))
    assert json.loads(model.shown())["capabilities"] == wanted


@pytest.mark.parametrize(
    ("count", "wanted"),
    [(134_515_008, "134.52M"), (1_543_714_304, "1.5B"), (8_030_261_248, "8.0B"), (2_000_000, "2.00M"), (9_400, "9K")],
)
def test_numbers_for_people(count: int, wanted: str) -> None:
    assert format_parameters(count) == wanted
