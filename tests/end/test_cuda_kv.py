"""Engines on a GPU with quantized keys and values."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import tiny_models
from penstock import LLM, SamplingParams

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]

BASE: dict[str, Any] = {"device": "cuda", "dtype": "float32", "context": 512, "kv_memory": "64MB", "max_sequences": 16}
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True, logprobs=1)
PROMPTS = [
    random.Random(seed).choices(range(2, tiny_models.VOCAB), k=length) for seed, length in enumerate((5, 90, 300))
]


def answers(llm: LLM) -> list[list[int]]:
    return [answer.tokens for answer in llm.generate(PROMPTS, GREEDY)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("gemma3", tmp_path_factory.mktemp("models") / "gemma3")


@pytest.mark.parametrize("kv_dtype", ["fp8", "int8", "int4", "fp8,int8", "int8,int4"])
def test_prefix_hits_and_neighbours_change_nothing(folder: Path, kv_dtype: str) -> None:
    """Computed at once, behind a prefix that was found, in chunks, and each alone."""
    with LLM(str(folder), kv_dtype=kv_dtype, **BASE) as llm:
        assert llm.facts["kv_dtype"] == kv_dtype
        first = answers(llm)
        again = llm.generate(PROMPTS, GREEDY)
        assert [answer.tokens for answer in again] == first
        assert again[-1].cached_tokens > 250
        llm.check_integrity()
    with LLM(str(folder), kv_dtype=kv_dtype, **BASE, step_tokens=32) as llm:
        assert answers(llm) == first
        assert [llm.generate(prompt, GREEDY).tokens for prompt in PROMPTS] == first


def test_more_tokens_fit(folder: Path) -> None:
    tokens = {}
    for kv_dtype in ("auto", "fp8", "int8", "int4"):
        with LLM(str(folder), kv_dtype=kv_dtype, **BASE | {"dtype": "bfloat16", "kv_memory": "1MB"}) as llm:
            tokens[kv_dtype] = llm.facts["kv_tokens"]
            assert llm.facts["kv_bytes"] <= 1_000_000
    assert tokens["int4"] > tokens["int8"] == tokens["fp8"] > 1.6 * tokens["auto"]  # heads of 32: scales weigh more


def test_int8_is_near_a_float_cache(folder: Path) -> None:
    with LLM(str(folder), **BASE) as llm:
        exact = answers(llm)
    with LLM(str(folder), kv_dtype="int8", **BASE) as llm:
        found = answers(llm)
    assert sum(one[0] == other[0] for one, other in zip(exact, found, strict=True)) == len(PROMPTS)
