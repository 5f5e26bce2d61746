"""Adapters in an engine of two ranks, in processes of their own: the output of one rank. `make parallel` runs more."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers import tiny_models
from helpers.adapter_engine import AdapterEngine, AdapterProcess, Answer, Job, named
from helpers.adapter_samples import linear_modules, write_adapter
from helpers.rank_processes import all_gone, other_ranks
from helpers.server_process import until
from penstock.errors import AdapterLoadFailed, EngineDied
from penstock.flow import Adapter, FinishReason, SamplingParams
from penstock.store import hf_folder
from penstock.store.spec import ModelSpec

BASE: dict[str, Any] = {"kv_memory": "16MiB", "context": 256, "device": "cpu", "max_sequences": 8} | {
    "step_tokens": 64,
    "speculate": "off",
}
TEXT = random.Random(0).choices(range(2, tiny_models.VOCAB), k=200)
SCORED = SamplingParams(temperature=0.0, logprobs=0)
DRAWN = SamplingParams(temperature=0.9, top_k=20, seed=3)
ROOM = "100KiB"  # of each rank: for three or four


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("qwen2", tmp_path_factory.mktemp("model") / "qwen2")


@pytest.fixture(scope="module")
def spec(model: Path) -> ModelSpec:
    return hf_folder.read(model, "qwen2").spec


@pytest.fixture(scope="module")
def adapters(spec: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> list[Adapter]:
    folder, layers = tmp_path_factory.mktemp("adapters"), linear_modules(spec)
    kinds: tuple[dict[str, Any], ...] = (
        {"rank": 4},
        {"rank": 9, "use_rslora": True},
        {"rank": 2, "modules": (*layers, "lm_head", "embed_tokens")},
        {"rank": 17, "modules": ("o_proj", "down_proj")},
        {"rank": 3, "modules": ("q_proj", "v_proj")},
    )
    return [
        named(write_adapter(folder / f"a{seed}", spec, seed=seed, size=0.3, **kind)) for seed, kind in enumerate(kinds)
    ]


@pytest.fixture(scope="module")
def alone(model: Path) -> AdapterEngine:
    return AdapterEngine(str(model), **BASE, dtype="float32")


@pytest.fixture(scope="module")
def group(model: Path) -> Iterator[AdapterProcess]:
    engine = AdapterProcess(str(model), **BASE, threads=2, tensor_parallel=2, adapter_memory=ROOM)
    yield engine
    engine.close()


def jobs_of(adapters: list[Adapter]) -> list[Job]:
    """With adapters and without, greedy and drawn, and embeddings."""
    owners = [*adapters, None]
    made = [Job(TEXT[: 20 + 7 * place], owner, SCORED, 8) for place, owner in enumerate(owners)]
    made += [Job(TEXT[place : 30 + place], owner, DRAWN, 8) for place, owner in enumerate(owners)]
    return made + [Job(TEXT[:30], owner, task="embed") for owner in owners]


def assert_same(found: list[Answer], expected: list[Answer]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.tokens == theirs.tokens
        logprobs = [[one.logprob for one in answer.logprobs] for answer in (ours, theirs)]
        assert np.allclose(*logprobs, atol=1e-4)
        vectors = [np.frombuffer(answer.end.embedding or b"", dtype=np.float32) for answer in (ours, theirs)]
        assert np.allclose(*vectors, atol=1e-4)


def test_mixed_over_ranks_is_alone(group: AdapterProcess, alone: AdapterEngine, adapters: list[Adapter]) -> None:
    """More adapters than there is room for."""
    jobs = jobs_of(adapters)
    expected = [alone.run([job])[0] for job in jobs]
    assert_same(group.run(jobs), expected)
    assert len({tuple(answer.tokens) for answer in expected[:6]}) == 6
    shuffled = random.Random(1).sample(range(len(jobs)), len(jobs))
    assert_same(group.run([jobs[one] for one in shuffled]), [expected[one] for one in shuffled])
    known = group.query("adapters")
    assert sum(one["loads"] for one in known) > len(adapters)
    assert sum(one["bytes"] for one in known) <= 100 << 10
    cached = [answer.end.cached_tokens for answer in group.run([Job(TEXT[:62], owner) for owner in (*adapters, None)])]
    assert cached == [16, 16, 32, 32, 48, 48]  # of their own jobs before, none of which is a hit for another


def test_a_share_takes_less_than_the_whole(
    group: AdapterProcess, alone: AdapterEngine, adapters: list[Adapter], spec: ModelSpec
) -> None:
    sizes = []
    for engine in (group, alone):
        engine.run([Job(TEXT[:9], adapters[3])])
        sizes.append(next(one["bytes"] for one in engine.query("adapters") if one["name"] == "a3"))
    a, b = spec.num_heads * spec.head_dim + spec.intermediate_size, 2 * spec.hidden_size  # A is split, B is not
    assert sizes[0] / sizes[1] == (a / 2 + b) / (a + b)


def test_an_adapter_that_was_removed_may_come_again(
    group: AdapterProcess, alone: AdapterEngine, adapters: list[Adapter]
) -> None:
    job = Job(TEXT[:40], adapters[0], SCORED)
    expected = alone.run([job])
    assert_same(group.run([job]), expected)
    assert group.query("forget_adapter", name="a0", version=adapters[0].version)["forgotten"]
    assert "a0" not in {one["name"] for one in group.query("adapters")}
    assert_same(group.run([job]), expected)


def test_what_cannot_be_loaded_ends_its_own_sequences_only(
    group: AdapterProcess, alone: AdapterEngine, adapters: list[Adapter], spec: ModelSpec, tmp_path: Path
) -> None:
    bystander = group.submit(Job(TEXT[:20], adapters[0], max_output=30))

    def error(name: str, change: Callable[[Path], object]) -> str:
        folder = write_adapter(tmp_path / name, spec)
        adapter = named(folder)
        change(folder)
        end = group.error(Job(TEXT[:20], adapter))
        assert end.code == AdapterLoadFailed.code
        return end.error or ""

    error("deleted", shutil.rmtree)
    assert "truncated" in error("cut", lambda folder: os.truncate(folder / "adapter_model.safetensors", 5000))
    assert "has changed on disk" in error("changed", lambda folder: write_adapter(folder, spec, seed=5))
    large = named(write_adapter(tmp_path / "large", spec, rank=200))
    assert "raise adapter_memory" in (group.error(Job(TEXT[:20], large)).error or "")
    job = Job(TEXT[:20], adapters[0], max_output=30)
    assert group.answers[bystander].tokens == alone.run([job])[0].tokens
    assert_same(group.run([job]), alone.run([job]))


def test_a_rank_that_dies_while_it_loads_ends_the_group(group: AdapterProcess, spec: ModelSpec, tmp_path: Path) -> None:
    """The adapter's file has become a pipe that nobody writes to."""
    adapter = named(write_adapter(tmp_path / "slow", spec))
    weights = Path(adapter.path) / "adapter_model.safetensors"
    weights.unlink()
    os.mkfifo(weights)
    id = group.submit(Job(TEXT[:20], adapter))
    until(lambda: any(one["state"] == "loading" for one in group.query("adapters")), "the load")
    assert group.answers[group.submit(Job(TEXT[:5]))].last is None
    rank_0 = group.facts["pid"]
    (rank_1,) = other_ranks(rank_0)
    os.kill(rank_1, signal.SIGKILL)
    while group.loop.has_work:
        group.step()
    assert group.answers[id].end.finish is FinishReason.ERROR
    assert group.answers[id].end.code == EngineDied.code
    until(lambda: all_gone([rank_0, rank_1]), "the end of all ranks")
