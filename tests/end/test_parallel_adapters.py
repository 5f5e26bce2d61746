"""Adapters in engines of several ranks: every architecture as PEFT has it, real weights, quantized ones, failures and
sleep. `make parallel` runs it."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from gguf.constants import GGMLQuantizationType

from helpers import quantized_checkpoints, tiny_gguf, tiny_models
from helpers.adapter_engine import AdapterEngine, AdapterProcess, Job, named
from helpers.adapter_samples import linear_modules, peft_model, write_adapter
from helpers.rank_processes import all_gone, other_ranks
from helpers.server_process import Server, until
from penstock.flow import Adapter, SamplingParams
from penstock.store.files import ModelFiles
from penstock.store.peft_adapter import WEIGHTS
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec

pytestmark = [pytest.mark.parallel, pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")]
TOLERANCE = 1e-4
NEW_TOKENS = 12
BASE: dict[str, Any] = {"device": "cpu", "context": 128, "block_size": 8, "step_tokens": 24, "max_sequences": 6}
SCORED = SamplingParams(temperature=0.0, prompt_logprobs=0, logprobs=0, ignore_eos=True)


def adapters_of(spec: ModelSpec, folder: Path) -> list[Adapter]:
    kinds: tuple[dict[str, Any], ...] = (
        {"rank": 16, "alpha": 32.0, "use_rslora": True, "size": 0.05},
        {"rank": 33, "layers": (0, 2), "layers_to_transform": [0, 2]},
        {"rank": 2, "modules": (*linear_modules(spec), "embed_tokens", "lm_head"), "size": 0.02},
        {"rank": 1, "modules": ("o_proj", "down_proj")},
    )
    return [named(write_adapter(folder / f"a{seed}", spec, seed=seed, **kind)) for seed, kind in enumerate(kinds)]


def texts(count: int) -> list[list[int]]:
    drawn = random.Random(0)
    return [drawn.choices(range(2, tiny_models.VOCAB), k=20 + 11 * place) for place in range(count)]


def jobs_of(adapters: list[Adapter]) -> list[Job]:
    owners = [*adapters, None]
    return [Job(text, owner, SCORED, NEW_TOKENS) for text, owner in zip(texts(len(owners)), owners, strict=True)]


def room_for_two(adapters: list[Adapter], world: int) -> str:
    """In each rank's memory, as much as a load of the largest reserves, and a little more."""
    return str(max(one.num_bytes for one in adapters) * 2 // world + (64 << 10))


@pytest.fixture(scope="module", params=[name for name in tiny_models.FAMILIES if name != "phi3-longrope"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make(request.param, tmp_path_factory.mktemp(request.param) / "model")


@pytest.mark.parametrize("world", [2, 4])  # with 2 KV heads: split, and shared by two ranks each
def test_as_peft(folder: Path, world: int, tmp_path: Path) -> None:
    """Greedy tokens and the scores of prompts, mixed, in chunks, after evictions and prefix hits."""
    adapters = adapters_of(resolve(str(folder)).spec, tmp_path)
    jobs, expected = jobs_of(adapters), []
    for job in jobs:
        oracle = tiny_models.oracle(folder) if job.adapter is None else peft_model(folder, Path(job.adapter.path))
        tokens = list(job.tokens)
        with torch.inference_mode():
            for _ in range(NEW_TOKENS):
                scores = oracle(torch.tensor([tokens])).logits[0].log_softmax(-1)
                tokens.append(int(scores[-1].argmax()))
        theirs = [scores[place, token].item() for place, token in enumerate(tokens[1:])]
        expected.append((tokens[len(job.tokens) :], theirs))
    room = room_for_two(adapters, world)
    engine = AdapterProcess(str(folder), **BASE, tensor_parallel=world, threads=2, adapter_memory=room)
    try:
        for _ in range(2):
            for answer, (tokens, theirs) in zip(engine.run(jobs), expected, strict=True):
                assert answer.tokens == tokens
                ours = [one.logprob for one in answer.logprobs]
                assert np.abs(np.array(ours) - theirs[-NEW_TOKENS:]).max() < TOLERANCE
        assert sum(one["loads"] for one in engine.query("adapters")) > len(adapters)
    finally:
        engine.close()


@pytest.mark.parametrize("kind", ["gguf", "awq"])
def test_quantized_bases(kind: str, tmp_path: Path) -> None:
    floats = tiny_models.make("qwen2", tmp_path / "floats", num_hidden_layers=1, intermediate_size=128)
    if kind == "gguf":
        model = tiny_gguf.convert(floats, tmp_path / "tiny.gguf", GGMLQuantizationType.Q8_0)
    else:
        model, _ = quantized_checkpoints.write(floats, tmp_path / kind, kind)
    adapters = [named(write_adapter(tmp_path / f"a{rank}", resolve(str(model)).spec, rank=rank)) for rank in (3, 17)]
    found = []
    for options in ({"dtype": "float32"}, {"tensor_parallel": 4}):
        engine = AdapterProcess(str(model), **BASE, **options, threads=2)
        found.append([[one.logprob for one in answer.logprobs] for answer in engine.run(jobs_of(adapters))])
        engine.close()
    assert np.abs(np.array(found[0]) - np.array(found[1])).max() < TOLERANCE


@pytest.mark.weights
def test_smollm2(smollm2: ModelFiles, tmp_path: Path) -> None:
    """Three ranks; 20 adapters, of which there is room for some."""
    adapters = [
        named(write_adapter(tmp_path / f"a{seed}", smollm2.spec, rank=(4, 16)[seed % 2], seed=seed, dtype="float16"))
        for seed in range(20)
    ]
    drawn = random.Random(0)
    jobs = [Job(drawn.choices(range(100, 40_000), k=24), one, SCORED, 8) for one in (*adapters, None)]
    options = {"device": "cpu", "context": 256, "dtype": "float32", "speculate": "off"}
    alone = AdapterEngine("smollm2", **options).run(jobs)
    engine = AdapterProcess("smollm2", **options, tensor_parallel=3, adapter_memory="60MB")
    try:
        for ours, theirs in zip(engine.run(jobs), alone, strict=True):
            assert ours.tokens == theirs.tokens
            scores = [np.array([one.logprob for one in answer.logprobs]) for answer in (ours, theirs)]
            assert np.abs(scores[0] - scores[1]).max() < 1e-3
        known = engine.query("adapters")
        assert sum(one["bytes"] for one in known) <= 60e6
        assert sum(one["state"] == "resident" for one in known) < 20
    finally:
        engine.close()


@pytest.fixture
def served(tmp_path: Path, tiny: Path) -> Iterator[tuple[Server, Path]]:
    """With an adapter whose file has become a pipe that nobody writes to."""
    adapter = write_adapter(tmp_path / "slow", resolve(str(tiny)).spec, size=0.5)
    weights = adapter / WEIGHTS
    options = ("--tensor-parallel", 2, "--kv-memory", "100MB", "--adapter", f"slow={adapter}")
    with Server(tiny, *options) as server:
        weights.rename(tmp_path / WEIGHTS)
        os.mkfifo(weights)
        yield server, tmp_path / WEIGHTS


def test_a_rank_dies_while_it_loads(served: tuple[Server, Path]) -> None:
    """Those without an adapter go on meanwhile; those that waited for it are answered by the next group."""
    server, saved = served
    (engine,) = server.engines()
    (rank_1,) = other_ranks(engine)
    body = {"prompt": [7, 8], "max_tokens": 8, "ignore_eos": True, "temperature": 0}

    def ask(model: str) -> httpx.Response:
        return httpx.post(f"{server.api}/completions", json={**body, "model": model}, timeout=120)

    def states() -> list[str]:
        listed = httpx.get(f"{server.url}/admin/adapters", timeout=60).json()["data"]
        return [one["state"] for entry in listed for one in entry["residency"]]

    with ThreadPoolExecutor(2) as threads:
        waiting = threads.submit(ask, f"{server.model}@slow")
        until(lambda: "loading" in states(), "the load")
        base = ask(server.model).json()["choices"][0]["text"]
        (Path(saved.parent) / "slow" / WEIGHTS).unlink()
        saved.rename(saved.parent / "slow" / WEIGHTS)
        os.kill(rank_1, signal.SIGKILL)
        answer = waiting.result()
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["text"] != base
    until(lambda: all_gone([engine, rank_1]), "the end of all ranks")
    assert server.metric("engine_restarts") == 1
    until(server.idle, "idle")
    assert httpx.get(f"{server.url}/observe/check", timeout=120).json()["ok"]


def test_adapters_after_sleep(tiny: Path, tmp_path: Path) -> None:
    """The other ranks that end with it, and those that start again."""
    adapter = named(write_adapter(tmp_path / "a", resolve(str(tiny)).spec, size=0.5))
    engine = AdapterProcess(str(tiny), **BASE, tensor_parallel=2, threads=2)
    try:
        job = Job([5, 6, 7], adapter, SCORED)
        before = engine.run([job])[0].tokens
        assert before != engine.run([job._replace(adapter=None)])[0].tokens
        engine.query("sleep")
        engine.query("wake")
        assert engine.query("adapters") == []
        assert engine.run([job])[0].tokens == before
    finally:
        engine.close()
