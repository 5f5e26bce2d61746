"""The default model, pulled for real."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from penstock.errors import PullFailed
from penstock.store import gguf
from penstock.store.catalogue import CATALOGUE
from penstock.store.files import ModelFiles
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec, Rope

pytestmark = pytest.mark.weights


@pytest.fixture(scope="module")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    try:
        return resolve("smollm2", cache=tmp_path_factory.mktemp("cache"))
    except PullFailed as error:
        if not re.search("cannot be reached|Could not find a version", error.message):
            raise
        pytest.skip(error.message)


def test_spec(smollm2: ModelFiles) -> None:
    assert smollm2.spec == ModelSpec(
        architecture="llama",
        name="smollm2",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        context=8192,
        norm_eps=1e-5,
        rope=Rope(theta=100_000.0, dim=64),
        tied=True,
        attention_scale=0.125,
        dtype="bfloat16",
        weights="Q4_1",
        matrix_types={"Q4_1": 106_168_320},
        table_types={"Q8_0": 28_311_552},
        end_tokens=(2, 0),
    )


def test_files(smollm2: ModelFiles) -> None:
    assert smollm2.weights[0].stat().st_size == CATALOGUE["smollm2"].size_bytes
    assert smollm2.special_tokens["eos_token"] == "<|im_end|>"
    assert smollm2.chat_template is not None
    assert "<|im_start|>" in smollm2.chat_template
    assert smollm2.license == "Apache-2.0"
    assert Tokenizer.from_file(str(smollm2.tokenizer)).get_vocab_size() == 49152


def test_later_it_is_neither_fetched_nor_opened(smollm2: ModelFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(gguf, "read_header", refuse)
    cache = smollm2.weights[0].parents[2]
    assert resolve("smollm2", cache=cache, offline=True) == smollm2
