"""Adapters on a GPU: requests of every kind, in CUDA graphs and beside them, with room for few adapters, and after the
engine slept. In float32, so that answers are the same unless two tokens are equally likely."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers import tiny_models
from helpers.adapter_engine import AdapterEngine, Answer, Job, named
from helpers.adapter_samples import write_adapter
from helpers.tiny_requests import PARAMS, PROMPTS, REQUESTS
from penstock import LLM, SamplingParams
from penstock.flow import Adapter
from penstock.forward import cuda_startup
from penstock.forward.decode_graphs import DecodeGraphs
from penstock.model.merge import merge
from penstock.store.adapter import open_adapter
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
BASE: dict[str, Any] = {
    "context": 256,
    "device": "cuda",
    "dtype": "float32",
    "kv_memory": "50MB",
    "max_sequences": 16,
    "adapter_memory": "64MiB",
}
TEXT = [3 + (5 * place + place * place) % 300 for place in range(200)]
GREEDY = SamplingParams(temperature=0.0, logprobs=0, ignore_eos=True)
KINDS: dict[str, dict[str, Any]] = {
    "style": {"rank": 4},
    "tone": {"rank": 17, "modules": ("q_proj", "up_proj")},
    "tables": {"rank": 6, "modules": ("embed_tokens", "v_proj", "lm_head")},
    "large": {"rank": 100, "alpha": 20.0},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("base") / "model")


@pytest.fixture(scope="module")
def spec(model: Path) -> ModelSpec:
    return resolve(str(model)).spec


@pytest.fixture(scope="module")
def adapters(spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        name: named(write_adapter(folder / name, spec, seed=seed, size=0.5, dtype="float16", **kind))
        for seed, (name, kind) in enumerate(KINDS.items())
    }


def check_alike(found: Sequence[Answer], expected: Sequence[Answer]) -> None:
    """The same tokens, and log-probabilities that differ by rounding."""
    for one, other in zip(found, expected, strict=True):
        assert one.tokens == other.tokens
        assert [lp.logprob for lp in one.logprobs] == pytest.approx([lp.logprob for lp in other.logprobs], abs=1e-3)
        if one.end.embedding is not None:
            assert other.end.embedding is not None
            vectors = [np.frombuffer(answer.end.embedding, dtype="<f4") for answer in (one, other)]
            assert vectors[0] == pytest.approx(vectors[1], abs=1e-4)


def jobs(adapters: dict[str, Adapter], max_output: int = 16) -> list[Job]:
    owners = [*adapters.values(), None]
    made = [
        Job(TEXT[place : place + 20 + 9 * place], owner, GREEDY, max_output) for place, owner in enumerate(owners * 2)
    ]
    return made + [Job(TEXT[:30], owner, task="embed") for owner in owners]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_request_is_answered_as_by_the_merged_model(
    model: Path, adapters: dict[str, Adapter], name: str, tmp_path: Path
) -> None:
    """n > 1, logprobs of prompts and answers, penalties, schemas, regular expressions, stops, budgets."""
    path = adapters[name].path
    merge(resolve(str(model)), open_adapter(Path(path)), tmp_path / "merged", lambda done, count: None)
    options = {key: value for key, value in BASE.items() if key != "adapter_memory"}
    with LLM(str(tmp_path / "merged"), **options) as llm:
        expected = llm.generate(PROMPTS, PARAMS)
    with LLM(str(model), **options, adapters={name: path}) as llm:
        plain = llm.generate(PROMPTS, PARAMS)
        found = llm.generate(PROMPTS, PARAMS, adapter=name)
        again = llm.generate(PROMPTS, PARAMS, adapter=name)  # with prefix hits
        llm.check_integrity()

    def tokens(results: Any) -> list[Any]:
        return [[(choice.tokens, choice.finish) for choice in result.choices] for result in results]

    assert tokens(found) == tokens(expected) != tokens(plain)
    assert tokens(again) == tokens(found)
    assert len(found[list(REQUESTS).index("choices")].choices) == 3


@pytest.mark.parametrize(
    "options",
    [{}, {"context": 512}, {"kv_memory": "230KiB", "step_tokens": 32}],
    ids=["graphs", "chunks", "preemption"],
)
def test_mixed_is_alone(model: Path, adapters: dict[str, Adapter], options: dict[str, Any]) -> None:
    asked = jobs(adapters, 48 if "step_tokens" in options else 16)
    if "context" in options:  # prompts for tiles of many rows
        asked += [Job(TEXT * 2, owner, GREEDY) for owner in (*adapters.values(), None)]
    single = AdapterEngine(str(model), **BASE | {"context": options.get("context", 256), "max_sequences": 1})
    alone = [single.run([job])[0] for job in asked]
    engine = AdapterEngine(str(model), **BASE | options)
    check_alike(engine.run(asked), alone)
    assert len({tuple(one.tokens) for one in alone}) > len(adapters)
    assert (engine.query("stats")["preemptions"] > 0) == ("step_tokens" in options)


def test_steps_without_adapters_take_the_graphs_of_an_engine_that_has_none(
    model: Path, adapters: dict[str, Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    adapted: list[bool] = []
    run = DecodeGraphs.run

    def noting(self: DecodeGraphs, rows: Any, owners: Any = None) -> Any:
        adapted.append(owners is not None)
        return run(self, rows, owners)

    monkeypatch.setattr(DecodeGraphs, "run", noting)
    engine = AdapterEngine(str(model), **BASE)
    plain = AdapterEngine(str(model), **{key: value for key, value in BASE.items() if key != "adapter_memory"})
    job = Job(TEXT[:9], None, GREEDY)
    expected = plain.run([job, job])
    adapted.clear()
    check_alike(engine.run([job, job]), expected)
    assert adapted
    assert not any(adapted)
    both = engine.run([job, Job(TEXT[:9], adapters["style"], GREEDY)])
    assert any(adapted)
    check_alike(both[:1], expected[:1])
    assert both[1].tokens != expected[1].tokens


def test_more_adapters_than_room(model: Path, spec: ModelSpec, tmp_path: Path) -> None:
    """Of several ranks, hit at random beside sequences that run: each answer is the one that the adapter gives alone,
    and none is lost. Some come from the host's memory again, some from their files."""
    made = [
        named(write_adapter(tmp_path / f"a{one}", spec, rank=(4, 20, 40)[one % 3], seed=one, size=0.5))
        for one in range(40)
    ]
    size = AdapterEngine(str(model), **BASE)
    size.run([Job(TEXT[:4], made[2])])
    each = size.query("adapters")[0]["bytes"]
    engine = AdapterEngine(str(model), **BASE | {"adapter_memory": str(6 * each)})
    draw = random.Random(3)
    expected = {one.name: size.run([Job(TEXT[:8], one)])[0].tokens for one in made}
    asked = [draw.choice(made) if draw.random() < 0.6 else made[draw.randrange(4)] for _ in range(200)]
    ids: list[str] = []
    background = engine.submit(Job(TEXT[:5], None, GREEDY, 200))
    while asked[len(ids) :] or engine.loop.has_work:
        arriving = asked[len(ids) : len(ids) + draw.choice((0, 1, 1, 4))]
        ids += [engine.submit(Job(TEXT[:8], adapter)) for adapter in arriving]
        engine.step()
        if draw.random() < 0.1:
            engine.loop.scheduler.check_integrity()
    engine.finish()
    assert len(engine.answers[background].tokens) == 200
    assert [engine.answers[id].tokens for id in ids] == [expected[one.name] for one in asked]
    assert len({tuple(one) for one in expected.values()}) > 30
    known = engine.query("adapters")
    assert sum(one["loads"] for one in known) > len(made)
    assert sum(one["bytes"] for one in known) <= 6 * each


def test_one_that_does_not_fit_is_refused(model: Path, adapters: dict[str, Adapter]) -> None:
    engine = AdapterEngine(str(model), **BASE | {"adapter_memory": "100KiB"})
    assert "adapter_memory" in (engine.error(Job(TEXT[:9], adapters["large"])).error or "")
    bare = AdapterEngine(str(model), **{key: value for key, value in BASE.items() if key != "adapter_memory"})
    assert "adapter_memory" in (bare.error(Job(TEXT[:9], adapters["style"])).error or "")


def test_adapters_are_there_again_after_the_engine_slept(
    model: Path, adapters: dict[str, Adapter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_startup, "owns_process", lambda: True)
    engine = AdapterEngine(str(model), **BASE)
    asked = jobs(adapters)
    expected = engine.run(asked)
    awake = torch.cuda.mem_get_info()[0]
    for _ in range(2):
        assert engine.loop.sleep()
        assert torch.cuda.mem_get_info()[0] - awake > 100 << 20  # of the cache and the adapters
        assert not any(one["state"] == "resident" for one in engine.query("adapters"))
        engine.loop.wake()
        check_alike(engine.run(asked), expected)
