"""Requests of every kind with an adapter: choices, prompt logprobs, constraints, drafts, quantized KV. The oracle is
the model into which the adapter was merged; where only the way changes, answers are the same to the last bit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers import draft_heads
from helpers.adapter_engine import AdapterEngine, Job, named
from helpers.adapter_samples import write_adapter
from helpers.draft_heads import PROPOSERS, speculate_setting
from helpers.native_paged_model import needs_library
from helpers.recorded_drafts import draft_freely
from helpers.tiny_requests import PARAMS, PROMPTS, REQUESTS, outputs
from penstock import LLM, SamplingParams
from penstock.flow import Completion
from penstock.model.merge import merge
from penstock.store.adapter import open_adapter
from penstock.store.resolve import resolve

pytestmark = needs_library
BASE: dict[str, Any] = {"context": 128, "threads": 2, "device": "cpu", "block_size": 8, "kv_memory": "20MB"}
FEW = [list(REQUESTS).index(name) for name in ("greedy", "logprobs", "schema", "choices", "penalties")]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With an MTP layer of its own."""
    return draft_heads.with_mtp(tmp_path_factory.mktemp("mimo"))


@pytest.fixture(scope="module")
def adapters(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Float16, so that no backend rounds their numbers."""
    folder, spec = tmp_path_factory.mktemp("adapters"), resolve(str(model)).spec
    write = {
        "style": {"rank": 4},
        "tone": {"rank": 17, "modules": ("q_proj", "up_proj")},
        "tables": {"rank": 6, "modules": ("embed_tokens", "v_proj", "lm_head")},
    }
    return {
        name: str(write_adapter(folder / name, spec, seed=seed, size=0.5, dtype="float16", **write[name]))  # type: ignore[arg-type]
        for seed, name in enumerate(write)
    }


def tokens(results: Sequence[Completion]) -> list[Any]:
    return [[(choice.tokens, choice.text, choice.finish) for choice in result.choices] for result in results]


def logprobs(results: Sequence[Completion]) -> list[float]:
    """All of them, of prompts and answers."""
    found = [choice.logprobs or [] for result in results for choice in result.choices]
    found += [[one for one in result.prompt_logprobs or [] if one is not None] for result in results]
    return [one.logprob for some in found for one in some]


@pytest.mark.parametrize("name", ["style", "tables"])
def test_every_kind_of_request_is_answered_as_by_the_merged_model(
    model: Path, adapters: dict[str, str], name: str, tmp_path: Path
) -> None:
    """n > 1, logprobs of prompts and answers, penalties, schemas, regular expressions, stops, budgets."""
    merge(resolve(str(model)), open_adapter(Path(adapters[name])), tmp_path / "merged", lambda done, count: None)
    with LLM(str(tmp_path / "merged"), **BASE, kv_dtype="float32") as llm:
        expected = llm.generate(PROMPTS, PARAMS)
    with LLM(str(model), **BASE, kv_dtype="float32", adapters=adapters) as llm:
        plain = llm.generate(PROMPTS, PARAMS)
        found = llm.generate(PROMPTS, PARAMS, adapter=name)
        again = llm.generate(PROMPTS, PARAMS, adapter=name)  # with prefix hits
        llm.check_integrity()
    assert tokens(found) == tokens(expected) != tokens(plain)
    assert outputs(again) == outputs(found)
    assert len(logprobs(found)) > 100
    assert logprobs(found) == pytest.approx(logprobs(expected), abs=1e-3)
    assert len(found[list(REQUESTS).index("choices")].choices) == 3


@pytest.mark.parametrize("proposer", PROPOSERS)
def test_drafts_do_not_know_the_adapter_and_answers_are_the_same(
    model: Path, adapters: dict[str, str], proposer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_freely(monkeypatch)
    texts, params = [PROMPTS[place] for place in FEW], [PARAMS[place] for place in FEW]
    with LLM(str(model), **BASE, adapters=adapters) as llm:
        expected = {name: llm.generate(texts, params, adapter=name) for name in (None, *adapters)}
    with LLM(str(model), **BASE, adapters=adapters, speculate=speculate_setting(proposer, tmp_path)) as llm:
        for name, answers in expected.items():
            before = llm.stats()["speculation"]["drafted"]
            assert outputs(llm.generate(texts, params, adapter=name)) == outputs(answers)
            assert llm.stats()["speculation"]["drafted"] > before
        llm.check_integrity()


@pytest.mark.parametrize("kv_dtype", ["int8", "int4", "int8,int4"])
def test_a_quantized_kv_cache(model: Path, adapters: dict[str, str], kv_dtype: str) -> None:
    """Mixed is alone, and not what float32 says."""
    owners = [None, *(named(Path(path)) for path in adapters.values())]
    params = SamplingParams(temperature=0.0, logprobs=0)
    jobs = [Job(PROMPTS[9][: 30 + place], owner, params) for place, owner in enumerate(owners * 2)]
    single = AdapterEngine(str(model), **BASE, kv_dtype=kv_dtype, max_sequences=1)
    alone = [single.run([job])[0].content for job in jobs]
    mixed = [answer.content for answer in AdapterEngine(str(model), **BASE, kv_dtype=kv_dtype).run(jobs)]
    exact = [answer.content for answer in AdapterEngine(str(model), **BASE, kv_dtype="float32").run(jobs)]
    assert mixed == alone != exact
