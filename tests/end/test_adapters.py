"""Sequences with adapters in one engine: each is answered as if it were alone, whatever runs beside it, and however
many adapters there are. What cannot be loaded ends its own sequences, and nothing else."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest

from helpers import tiny_models
from helpers.adapter_engine import AdapterEngine, Job, named
from helpers.adapter_samples import LINEAR, write_adapter
from helpers.native_paged_model import needs_library
from helpers.recorded_drafts import draft_freely
from helpers.tiny_requests import PARAMS
from penstock.errors import AdapterLoadFailed
from penstock.flow import Adapter, SamplingParams
from penstock.store import hf_folder
from penstock.store.spec import ModelSpec

pytestmark = needs_library
BASE: dict[str, Any] = {"kv_memory": "16MiB", "context": 256, "device": "cpu", "threads": 2}
TEXT = random.Random(0).choices(range(2, tiny_models.VOCAB), k=200)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("model") / "llama")


@pytest.fixture(scope="module")
def spec(model: Path) -> ModelSpec:
    return hf_folder.read(model, "llama").spec


@pytest.fixture(scope="module")
def adapters(spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        named(
            write_adapter(
                folder / f"a{number}",
                spec,
                rank=(4, 16, 9)[number % 3],
                modules=(*LINEAR, "lm_head", "embed_tokens") if number > 3 else LINEAR,
                seed=number,
                size=0.3,
                dtype="float16",
            )
        )
        for number in range(6)
    ]


def jobs_of(adapters: list[Adapter]) -> list[Job]:
    """Every kind of request, with adapters and without, and embeddings."""
    params = [msgspec.structs.replace(one, n=1, stop=(), prompt_logprobs=None) for one in PARAMS]
    owners = [*adapters, None]
    made = [
        Job(TEXT[place : place + 20 + 3 * place], owners[place % len(owners)], one, 48)
        for place, one in enumerate([*params, *params])
    ]
    return made + [Job(TEXT[:30], owner, task="embed") for owner in owners]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"speculate": "lookup", "speculate_audit": 1.0},
        {"kv_memory": "120KiB", "max_sequences": 6, "step_tokens": 32},  # preempts
        {"quantize": "int4", "adapter_memory": "150KiB", "max_sequences": 8},  # has room for few adapters
        {"prefix_caching": False, "policy": "fcfs", "lookahead": 1},
    ],
    ids=["plain", "drafts", "preemption", "evictions", "look-ahead"],
)
def test_mixed_is_alone(
    model: Path, adapters: list[Adapter], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    draft_freely(monkeypatch)
    jobs = jobs_of(adapters)
    quantized = {"quantize": options["quantize"]} if "quantize" in options else {}
    single = AdapterEngine(str(model), **BASE, **quantized, max_sequences=1)
    alone = [single.run([job])[0].content for job in jobs]
    engine = AdapterEngine(str(model), **BASE | options)
    mixed = [answer.content for answer in engine.run(jobs)]
    assert mixed == alone
    assert alone[-1][3] != alone[-2][3]
    stats = engine.query("stats")
    assert (stats["preemptions"] > 0) == ("step_tokens" in options)
    if "speculate" in options:
        assert stats["speculation"]["drafted"] > 0
        assert stats["speculation"]["audited"] > 0 == stats["speculation"]["mismatches"]


def test_the_prefix_cache_is_by_adapter_and_version(model: Path, adapters: list[Adapter], spec: ModelSpec) -> None:
    engine = AdapterEngine(str(model), **BASE)

    def cached(adapter: Adapter | None) -> int:
        return engine.run([Job(TEXT, adapter)])[0].end.cached_tokens

    first = adapters[0]
    path = Path(first.path).parent / "again"
    again = named(write_adapter(path, spec, rank=4, seed=77, size=0.3))
    assert [cached(first), cached(adapters[1]), cached(None)] == [0, 0, 0]
    assert [cached(first), cached(adapters[1]), cached(None)] == [192, 192, 192]
    assert cached(msgspec.structs.replace(again, name=first.name)) == 0


def test_more_adapters_than_room(model: Path, spec: ModelSpec, tmp_path: Path) -> None:
    """Hit at random under load: each answer is the one that the adapter gives alone, and none is lost."""
    made = [named(write_adapter(tmp_path / f"a{one}", spec, rank=4, seed=one, size=0.5)) for one in range(120)]
    size = AdapterEngine(str(model), **BASE)
    size.run([Job(TEXT[:4], made[0])])
    each = size.query("adapters")[0]["bytes"]
    engine = AdapterEngine(str(model), **BASE, adapter_memory=f"{13 * each}", max_sequences=16)
    alone = AdapterEngine(str(model), **BASE, adapter_memory=f"{200 * each}", max_sequences=1)
    draw = random.Random(3)
    expected = {one.name: alone.run([Job(TEXT[:8], one)])[0].tokens for one in made}
    asked = [draw.choice(made) if draw.random() < 0.6 else made[draw.randrange(4)] for _ in range(500)]
    ids: list[str] = []
    while asked[len(ids) :] or engine.loop.has_work:
        arriving = asked[len(ids) : len(ids) + draw.choice((0, 1, 1, 4))]
        ids += [engine.submit(Job(TEXT[:8], adapter)) for adapter in arriving]
        engine.step()
        if draw.random() < 0.1:
            engine.loop.scheduler.check_integrity()
    engine.finish()
    assert [engine.answers[id].tokens for id in ids] == [expected[one.name] for one in asked]
    assert len({tuple(one) for one in expected.values()}) > 100  # they say different things
    known = engine.query("adapters")
    assert sum(one["loads"] for one in known) > 120 - 13
    assert sum(one["bytes"] for one in known) <= 13 * each
    assert sum(one["state"] == "resident" for one in known) <= 13


def test_faults_end_their_own_sequences_only(
    model: Path, spec: ModelSpec, adapters: list[Adapter], tmp_path: Path
) -> None:
    engine = AdapterEngine(str(model), **BASE)
    bystander = engine.submit(Job(TEXT[:20], adapters[0], max_output=60))
    good = write_adapter(tmp_path / "good", spec)

    def broken(name: str, change: Any) -> Adapter:
        copy = Path(shutil.copytree(good, tmp_path / name))
        adapter = named(copy)
        change(copy)
        return adapter

    def cut(folder: Path) -> None:
        weights = folder / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-100])

    def overwrite(folder: Path) -> None:
        write_adapter(folder, spec, seed=5)

    deleted = engine.error(Job(TEXT[:20], broken("deleted", shutil.rmtree)))
    truncated = engine.error(Job(TEXT[:20], broken("truncated", cut)))
    changed = engine.error(Job(TEXT[:20], broken("changed", overwrite)))
    other = write_adapter(tmp_path / "other", msgspec.structs.replace(spec, hidden_size=96))
    misfit = engine.error(Job(TEXT[:20], named(other)))
    assert {end.code for end in (deleted, truncated, changed, misfit)} == {AdapterLoadFailed.code}
    assert "changed on disk" in (changed.error or "")
    assert "96" in (misfit.error or "")
    assert len(engine.answers[bystander].tokens) == 60
    states = {one["name"]: one["state"] for one in engine.query("adapters")}
    assert states == {
        "deleted": "failed",
        "truncated": "failed",
        "changed": "failed",
        "other": "failed",
        "a0": "resident",
    }


def test_too_large_an_adapter_is_refused(model: Path, adapters: list[Adapter]) -> None:
    engine = AdapterEngine(str(model), **BASE, adapter_memory="4KiB")
    end = engine.error(Job(TEXT[:20], adapters[0]))
    assert end.code == AdapterLoadFailed.code
    assert "adapter_memory" in (end.error or "")
    assert engine.run([Job(TEXT[:20])])[0].tokens


def test_files_may_go_while_an_adapter_is_in_use(model: Path, spec: ModelSpec, tmp_path: Path) -> None:
    path = write_adapter(tmp_path / "gone", spec, size=0.3)
    adapter, engine = named(path), AdapterEngine(str(model), **BASE)
    expected = engine.run([Job(TEXT[:20], adapter, max_output=60)])[0].tokens
    id = engine.submit(Job(TEXT[:20], adapter, max_output=60))
    while not engine.answers[id].tokens:
        engine.step()
    assert engine.query("forget_adapter", name=adapter.name, version=adapter.version) == {
        "forgotten": False,
        "in_use": True,
    }
    shutil.rmtree(path)
    engine.finish()
    assert engine.answers[id].tokens == expected
    assert engine.query("forget_adapter", name=adapter.name, version=adapter.version)["forgotten"]
    assert engine.query("adapters") == []
    assert engine.error(Job(TEXT[:20], adapter)).code == AdapterLoadFailed.code


def test_cancelled_while_it_waits(model: Path, adapters: list[Adapter]) -> None:
    engine = AdapterEngine(str(model), **BASE)
    id = engine.submit(Job(TEXT[:20], adapters[0]))
    engine.loop.scheduler.plan()  # begins to load
    engine.cancel(id)
    engine.finish()
    assert engine.answers[id].end.finish == "cancelled"
    assert engine.run([Job(TEXT[:20], adapters[0])])[0].tokens


def test_torch_says_the_same(model: Path, adapters: list[Adapter]) -> None:
    jobs = [Job(TEXT[:20], owner, SamplingParams(temperature=0.0, logprobs=0)) for owner in (*adapters, None)]
    torch = AdapterEngine(str(model), **BASE | {"threads": None}, dtype="float32").run(jobs)
    native = AdapterEngine(str(model), **BASE, kv_dtype="float32").run(jobs)
    for theirs, ours in zip(torch, native, strict=True):
        assert theirs.tokens == ours.tokens
        pairs = zip(theirs.logprobs, ours.logprobs, strict=True)
        assert max(abs(one.logprob - other.logprob) for one, other in pairs) < 1e-3
