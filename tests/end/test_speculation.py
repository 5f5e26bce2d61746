"""With drafts and without, answers are the same: a tiny model, whose drafts are its recorded answers with mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from helpers.native_paged_model import needs_library
from helpers.recorded_drafts import draft_freely, draft_recorded
from helpers.tiny_requests import PARAMS, PROMPTS, outputs
from penstock import LLM, SamplingParams
from penstock.flow import Completion
from penstock.forward.draft_audit import DraftAudit
from penstock.kernels.cpu import library

pytestmark = needs_library


def open_model(tiny: Path, **settings: Any) -> LLM:
    given = {"context": 128, "threads": 1, "device": "cpu", "block_size": 8, "kv_memory": "20MB"}
    return LLM(str(tiny), **{**given, **settings})


@pytest.fixture(scope="module")
def expected(tiny: Path) -> list[Completion]:
    with open_model(tiny) as llm:
        return llm.generate(PROMPTS, PARAMS)


def test_steps_are_measured_again_with_another_build_of_the_kernels(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_CACHE", str(tmp_path))
    kept = []
    for build in ((1, 1), (1, 1), (1, 2)):
        monkeypatch.setattr(library, "build", lambda build=build: build)
        open_model(tiny, speculate="lookup").close()
        kept.append(len(list((tmp_path / "step_costs").iterdir())))
    assert kept == [1, 1, 2]


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize("right", [0.7, 1.0])
def test_alone_and_together(
    tiny: Path, expected: list[Completion], lookahead: int, right: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_recorded(monkeypatch, expected, right)
    with open_model(tiny, speculate="lookup", lookahead=lookahead) as llm:
        together = llm.generate(PROMPTS, PARAMS)
        alone = [llm.generate(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]  # prefix hits
        llm.check_integrity()
        stats = llm.stats()["speculation"]
    assert outputs(together) == outputs(expected)
    assert outputs(alone) == outputs(expected)
    assert stats["accepted"] > 200
    if right < 1.0:
        assert stats["accepted"] < stats["drafted"]


@pytest.mark.parametrize("lookahead", [0, 1])
def test_in_chunks_and_preempted(
    tiny: Path, expected: list[Completion], lookahead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_recorded(monkeypatch, expected)
    with open_model(tiny) as roomy:
        block_bytes = roomy.facts["kv_bytes"] / roomy.facts["kv_tokens"] * 8
    settings = {"speculate": "lookup", "lookahead": lookahead, "step_tokens": 23, "max_sequences": 12}
    with open_model(tiny, kv_memory=str(int(block_bytes * 20)), prefix_caching=False, **settings) as llm:
        results = llm.generate(PROMPTS, PARAMS)
        llm.check_integrity()
        stats = llm.stats()
    assert stats["preemptions"] > 0
    assert stats["speculation"]["accepted"] > 100
    assert outputs(results) == outputs(expected)


def test_a_cache_of_int4_preempted_and_found_again(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With room and without drafts, then preempted, with drafts and prefix hits: the same answers."""
    with open_model(tiny, kv_dtype="int4") as roomy:
        expected = roomy.generate(PROMPTS, PARAMS)
        block_bytes = roomy.facts["kv_bytes"] / roomy.facts["kv_tokens"] * 8
    draft_recorded(monkeypatch, expected)
    settings = {"speculate": "lookup", "step_tokens": 23, "max_sequences": 12, "kv_dtype": "int4"}
    with open_model(tiny, kv_memory=str(int(block_bytes * 20)), **settings) as llm:
        results = llm.generate(PROMPTS, PARAMS)
        alone = [llm.generate(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        llm.check_integrity()
        stats = llm.stats()
    assert stats["preemptions"] > 0
    assert stats["speculation"]["accepted"] > 100
    assert outputs(results) == outputs(expected)
    assert outputs(alone) == outputs(expected)


def test_an_audit_draws_the_same_tokens(
    tiny: Path, expected: list[Completion], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    draft_recorded(monkeypatch, expected)
    with open_model(tiny, speculate="lookup", speculate_audit=0.5) as llm:
        assert outputs(llm.generate(PROMPTS, PARAMS)) == outputs(expected)
        stats = llm.stats()["speculation"]
    assert stats["audited"] > 100
    assert stats["mismatches"] == 0
    assert not caplog.records


def test_an_audit_finds_a_wrong_token(
    tiny: Path, expected: list[Completion], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Were a wrong draft accepted, it would say so, and leave the sequence as it is."""
    draft_recorded(monkeypatch, expected, right=1.0)

    def compare(audit: DraftAudit, slots: Any, rows: Any, tokens: list[int], kept: Any, redraw: Any) -> Any:
        return honest(audit, slots, rows, [tokens[0] + 1, *tokens[1:]], kept, redraw)

    honest = DraftAudit.compare
    monkeypatch.setattr(DraftAudit, "compare", compare)
    with open_model(tiny, speculate="lookup", speculate_audit=1.0) as llm:
        llm.generate(PROMPTS[0], PARAMS[0])
        stats = llm.stats()["speculation"]
    assert 0 < stats["mismatches"] < stats["audited"]
    assert "differs from the one drawn without drafts" in caplog.text


def test_a_request_without_speculation(tiny: Path, expected: list[Completion], monkeypatch: pytest.MonkeyPatch) -> None:
    draft_recorded(monkeypatch, expected)
    with open_model(tiny, speculate="auto") as llm:
        params = [msgspec.structs.replace(one, speculation=False) for one in PARAMS]
        assert outputs(llm.generate(PROMPTS, params)) == outputs(expected)
        assert llm.stats()["speculation"]["drafted"] == 0


def test_prompt_lookup(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model soon repeats itself, if it is greedy."""
    greedy = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
    with open_model(tiny) as llm:
        before = llm.generate(PROMPTS[:4], greedy)
    draft_freely(monkeypatch)
    with open_model(tiny, speculate="lookup") as llm:
        assert outputs(llm.generate(PROMPTS[:4], greedy)) == outputs(before)
        stats = llm.stats()["speculation"]
    assert stats["accepted"] > 0
    assert sum(stats["drafted_by_position"]) == stats["drafted"]


def test_torch(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference backend: the same, together and alone, audited; log-probabilities but for rounding."""
    with open_model(tiny, dtype="float32") as llm:
        before = llm.generate(PROMPTS, PARAMS)
    draft_recorded(monkeypatch, before, 0.8)
    with open_model(tiny, dtype="float32", speculate="lookup", speculate_audit=0.3) as llm:
        results = llm.generate(PROMPTS, PARAMS)
        results += [llm.generate(prompt, params) for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
        llm.check_integrity()
        stats = llm.stats()["speculation"]
    for result, plain in zip(results, before * 2, strict=True):
        for choice, wanted in zip(result.choices, plain.choices, strict=True):
            assert (choice.tokens, choice.finish, choice.stop) == (wanted.tokens, wanted.finish, wanted.stop)
            logprobs = [[entry.logprob for entry in one.logprobs or ()] for one in (choice, wanted)]
            assert logprobs[0] == pytest.approx(logprobs[1], abs=1e-4)
    assert 200 < stats["accepted"] < stats["drafted"]
    assert stats["audited"] > 50
    assert stats["mismatches"] == 0
