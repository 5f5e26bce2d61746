"""SmolLM2 as it comes, 4-bit weights and all, through the native CPU engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.native_paged_model import needs_library
from penstock import LLM, SamplingParams
from penstock.store.files import ModelFiles

pytestmark = [pytest.mark.weights, needs_library]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
QUESTIONS = (
    "What is the capital of France?",
    "Write a haiku about the sea.",
    "Count from one to ten, in words.",
    "Why is the sky blue? " * 20,
    "Name three colours.",
)


@pytest.fixture(scope="module")
def llm(smollm2: ModelFiles) -> Iterator[LLM]:
    with LLM("smollm2", context=1024, threads=2, isolate=True, device="cpu") as opened:
        assert opened.facts["kernels"].startswith("native")
        assert opened.facts["kv_dtype"] == "float16"
        yield opened


def chat(question: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": question}]


def test_it_knows_the_capital_of_france(llm: LLM) -> None:
    assert llm.chat(chat(QUESTIONS[0]), GREEDY).text == "The capital of France is Paris."


def test_a_greedy_answer_is_the_same_alone_and_in_company(llm: LLM) -> None:
    """Also when the prompt's beginning is in the cache by then, and beside rows that are sampled."""
    alone = [llm.chat(chat(question), GREEDY).tokens for question in QUESTIONS]
    together = [result.tokens for result in llm.chat([chat(question) for question in QUESTIONS], GREEDY)]
    assert together == alone
    sampled = SamplingParams(temperature=1.0, top_p=0.9, max_tokens=24, seed=1)
    params = [sampled if index % 2 else GREEDY for index in range(len(QUESTIONS))]
    mixed = [result.tokens for result in llm.chat([chat(question) for question in QUESTIONS], params)]
    assert mixed[::2] == alone[::2]
    assert mixed[1] == llm.chat(chat(QUESTIONS[1]), sampled).tokens
    llm.check_integrity()


def test_the_engine_stays_small(llm: LLM) -> None:
    """Most that its process has ever had in memory, torch's 224 MB included, after a prompt that fills a step."""
    llm.generate([[1000 + token for token in range(600)]], SamplingParams(temperature=0.0, max_tokens=4))
    status = Path(f"/proc/{llm.facts['pid']}/status").read_text()
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    assert peak_kib < 500_000
