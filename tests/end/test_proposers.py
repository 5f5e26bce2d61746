"""Draft models and heads on tiny models: with each of them answers are the same as without."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helpers import draft_heads, tiny_models
from helpers.draft_heads import PROPOSERS, speculate_setting
from helpers.native_paged_model import needs_library
from helpers.recorded_drafts import draft_freely
from helpers.tiny_requests import PARAMS, PROMPTS, outputs
from penstock import LLM, SamplingParams
from penstock.errors import PenstockError
from penstock.flow import Completion

pytestmark = needs_library
# Random heads are rarely right, but for tokens that biases leave no choice but these.
BIASED = SamplingParams(
    temperature=1.0, logit_bias={6: 60.0, 9: 62.0, 12: 64.0}, max_tokens=40, seed=5, ignore_eos=True
)
REQUESTS = [*PARAMS, BIASED]
TEXTS = [*PROMPTS, PROMPTS[3]]


def open_model(folder: Path, **settings: Any) -> LLM:
    given = {"context": 128, "threads": 1, "device": "cpu", "block_size": 8, "kv_memory": "20MB"}
    return LLM(str(folder), **{**given, **settings})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target with an MTP layer of its own."""
    return draft_heads.with_mtp(tmp_path_factory.mktemp("mimo"))


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[Completion]:
    with open_model(folder) as llm:
        return llm.generate(TEXTS, REQUESTS)


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_answers_are_the_same(
    folder: Path, expected: list[Completion], proposer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Together, alone with prefix hits, and preempted."""
    draft_freely(monkeypatch)
    speculate = speculate_setting(proposer, tmp_path)
    with open_model(folder, speculate=speculate) as llm:
        together = llm.generate(TEXTS, REQUESTS)
        alone = [llm.generate(text, params) for text, params in zip(TEXTS, REQUESTS, strict=True)]
        llm.check_integrity()
        stats = llm.stats()["speculation"]
        assert llm.facts["speculation"] == speculate
    room = "64KB" if proposer == "medusa" else "84KB"  # Medusa heads have no pages of their own
    with open_model(folder, speculate=speculate, step_tokens=23, max_sequences=12, kv_memory=room) as llm:
        preempted = llm.generate(TEXTS, REQUESTS)
        llm.check_integrity()
        assert llm.stats()["preemptions"] > 0
    assert outputs(together) == outputs(expected)
    assert outputs(alone) == outputs(expected)
    assert outputs(preempted) == outputs(expected)
    assert 20 < stats["accepted"] < stats["drafted"]


def rates(llm: LLM, texts: Sequence[list[int]], params: Sequence[SamplingParams]) -> tuple[int, int]:
    """Drafted and right tokens."""
    before = llm.stats()["speculation"]
    llm.generate(list(texts), list(params))
    after = llm.stats()["speculation"]
    return after["drafted"] - before["drafted"], after["accepted"] - before["accepted"]


@pytest.mark.parametrize("room", ["20MB", "250KB"])  # the second: preempted
def test_a_model_that_drafts_for_itself_is_always_right(
    folder: Path, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So its keys and values are those of the target's tokens: behind prompts in chunks, prefix hits, preemptions and
    requests without drafts; and it draws with the request's noise, biases and penalties."""
    draft_freely(monkeypatch)
    free = [params for params in REQUESTS if params.constraint is None and not params.stop and not params.stop_tokens]
    params = [msgspec.structs.replace(one, max_tokens=24, ignore_eos=True, n=1) for one in free]
    texts = [[3 + (5 * place + index * index) % 200 for index in range(70)] for place in range(len(params))]
    with open_model(folder, speculate=f"draft:{folder}", step_tokens=40, kv_memory=room) as llm:
        plain = [msgspec.structs.replace(one, speculation=False) for one in params]
        llm.generate(texts[:3], plain[:3])  # blocks that the draft model has not computed
        for _ in range(2):  # the second time from the prefix cache
            drafted, accepted = rates(llm, texts, params)
            assert drafted == accepted > 10 * len(params)
        longer = [[*text, 9, 8, 7, 6, 5] for text in texts]
        drafted, accepted = rates(llm, longer, params)
        assert drafted == accepted > 10 * len(params)
        assert (llm.stats()["preemptions"] > 0) == (room != "20MB")
        llm.check_integrity()


@pytest.mark.parametrize(
    ("speculate", "words"),
    [
        ("eagle:/no/such/folder", "no folder /no/such/folder with a draft head"),
        ("medusa:/no/such/folder", "no folder /no/such/folder with a draft head"),
        ("draft:no-such-model", "no-such-model"),
        ("draft:{other}", "has a vocabulary of 96 tokens, .* one of 320"),
        ("eagle:{head}", "was made for hidden states of 32, .* has 64"),
        ("medusa:{head}", "was made for another model: .* has hidden states of 64"),
        ("mtp", "has no MTP layers"),
        ("eagle", "speculate"),
        ("draft:", "speculate"),
        ("guess", "speculate"),
    ],
)
def test_errors_come_before_the_model_is_loaded(
    speculate: str, words: str, tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.forward.native_backend.load_packed_model", lambda _: pytest.fail("was loaded"))
    places = {"{head}": "head", "{other}": "other"}
    for place, name in places.items():
        if place in speculate:
            made = tmp_path / name
            draft_heads.eagle1(made) if name == "head" else tiny_models.make("llama", made, vocab_size=96)
            speculate = speculate.replace(place, str(made))
    with pytest.raises(PenstockError, match=words) as caught:
        open_model(tiny, speculate=speculate)
    assert caught.value.param == "speculate"
