"""Which kernels an engine on a CPU computes with, and in which types."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers import tiny_models
from helpers.native_paged_model import needs_library
from penstock import LLM, SamplingParams
from penstock.errors import InvalidSetting
from penstock.kernels.cpu import library

SHORT = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
PROMPT = list(range(10, 40))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("qwen3", tmp_path_factory.mktemp("qwen3"))


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As on a machine without a compiler."""
    library.load.cache_clear()
    monkeypatch.setattr(library, "PATH", Path("/nowhere/libpenstock.so"))
    yield
    library.load.cache_clear()


@needs_library
@pytest.mark.parametrize(
    ("asked", "made"),
    [("auto", "float16"), ("float32", "float32"), ("int8", "int8"), ("int4", "int4"), ("int8,int4", "int8,int4")],
)
def test_native_kernels_and_their_cache(folder: Path, asked: str, made: str) -> None:
    with LLM(str(folder), context=128, threads=2, device="cpu", kv_dtype=asked) as llm:
        assert llm.facts["kernels"].startswith("native")
        assert llm.facts["kv_dtype"] == made
        assert len(llm.generate(PROMPT, SHORT).tokens) == 8
        llm.check_integrity()


def test_a_type_of_torchs_is_computed_by_torch(folder: Path) -> None:
    with LLM(str(folder), context=128, threads=1, device="cpu", dtype="float32") as llm:
        assert (llm.facts["kernels"], llm.facts["kv_dtype"]) == ("torch", "float32")
        expected = llm.generate(PROMPT, SHORT).tokens
    with LLM(str(folder), context=128, threads=1, device="cpu", kv_dtype="float32") as llm:
        assert llm.generate(PROMPT, SHORT).tokens == expected


def test_torch_has_no_smaller_cache(folder: Path) -> None:
    with pytest.raises(InvalidSetting, match="int8 needs a GPU or the native CPU kernels") as caught:
        LLM(str(folder), context=128, device="cpu", dtype="float32", kv_dtype="int8")
    assert caught.value.param == "kv_dtype"


@pytest.mark.parametrize(
    ("kv_dtype", "message"),
    [
        ("fp8", "fp8 needs a GPU; on a CPU take int8"),
        ("int8,fp8", "fp8 needs a GPU; on a CPU take int8"),
        ("bfloat16", "have float16 instead of bfloat16"),
    ],
)
def test_types_that_a_cpu_does_not_have(folder: Path, kv_dtype: str, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message) as caught:
        LLM(str(folder), context=128, device="cpu", kv_dtype=kv_dtype)
    assert caught.value.param == "kv_dtype"


def test_without_the_library_torch_computes_and_one_line_says_so(
    folder: Path, no_library: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), LLM(str(folder), context=128, threads=1, device="cpu") as llm:
        assert (llm.facts["kernels"], llm.facts["dtype"]) == ("torch", "float32")
        assert len(llm.generate(PROMPT, SHORT).tokens) == 8
    assert [record.message for record in caplog.records if "native CPU kernels" in record.message][1:] == []
    assert "native CPU kernels" in caplog.text


@needs_library
def test_native_kernels_are_deterministic_anyway(folder: Path) -> None:
    for asked in (False, True):
        with LLM(str(folder), context=128, threads=1, device="cpu", deterministic=asked) as llm:
            assert llm.facts["deterministic"] is True


def test_torch_on_a_cpu_is_not_deterministic_and_says_so(folder: Path) -> None:
    with pytest.raises(InvalidSetting, match="depend on how many tokens a step has") as caught:
        LLM(str(folder), context=128, device="cpu", dtype="float32", deterministic=True)
    assert caught.value.param == "deterministic"
