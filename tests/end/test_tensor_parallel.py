"""One engine of two ranks, in processes of their own: the output of one rank. `make parallel` runs more of them."""

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from helpers import tiny_models
from helpers.rank_processes import all_gone, other_ranks
from helpers.server_process import until
from penstock import LLM, Constraint, SamplingParams
from penstock.errors import EngineDied, InvalidSetting

NEW_TOKENS = 24
GREEDY = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
# So little memory, and so few tokens in a step, that prompts are computed in chunks and sequences are preempted.
CROWDED = {"context": 128, "block_size": 8, "step_tokens": 24, "max_sequences": 8}
BLOCKS = 20
DRAWS = [
    SamplingParams(temperature=0.0, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=0.8),
    SamplingParams(temperature=1.2, top_k=40, top_p=0.9),
    SamplingParams(temperature=0.0, repetition_penalty=1.5, frequency_penalty=0.4, logprobs=2),
    SamplingParams(presence_penalty=1.0, logit_bias={7: 4.0, 9: -100.0}, top_k=30),
    SamplingParams(banned_tokens=tuple(range(100)), min_tokens=5),
    SamplingParams(constraint=Constraint("regex", "([a-e]{2} [0-9])+"), top_p=0.9),
]


def prompts(lengths: tuple[int, ...] = (1, 5, 40, 17, 64, 33, 90)) -> list[list[int]]:
    drawn = random.Random(0)
    return [[drawn.randrange(2, tiny_models.VOCAB) for _ in range(length)] for length in lengths]


def assert_close(found: list[Any] | None, expected: list[Any] | None) -> None:
    """Of log-probabilities."""
    assert found
    assert expected
    assert [one.token for one in found] == [one.token for one in expected]
    assert np.allclose([one.logprob for one in found], [one.logprob for one in expected], atol=1e-4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With windows, and norms on the heads of q and k."""
    return tiny_models.make("gemma3", tmp_path_factory.mktemp("gemma3"))


@pytest.fixture(scope="module")
def alone(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), device="cpu", dtype="float32", context=128, block_size=8) as llm:
        yield llm


@pytest.fixture(scope="module")
def parallel(folder: Path, alone: LLM) -> Iterator[LLM]:
    rank_bytes = alone.facts["kv_bytes"] / alone.facts["kv_tokens"] * 8 / 2  # of a block, on one of two ranks
    with LLM(
        str(folder), device="cpu", tensor_parallel=2, threads=2, kv_memory=str(int(BLOCKS * rank_bytes)), **CROWDED
    ) as llm:
        yield llm


def test_draws_logprobs_and_constraints(parallel: LLM, alone: LLM) -> None:
    params = [
        msgspec.structs.replace(one, max_tokens=NEW_TOKENS, ignore_eos=True, seed=number)
        for number, one in enumerate(DRAWS)
    ]
    starts = prompts()[: len(params)]
    expected, found = alone.generate(starts, params), parallel.generate(starts, params)
    assert [result.tokens for result in found] == [result.tokens for result in expected]
    for place in (0, 3):
        assert_close(found[place].choices[0].logprobs, expected[place].choices[0].logprobs)
    parallel.check_integrity()


def test_chunks_prefix_hits_and_preemption(parallel: LLM, alone: LLM) -> None:
    starts = [prompt[: 3 + place] for place, prompt in enumerate(prompts((20,) * 12))]
    expected = [result.tokens for result in alone.generate(starts, GREEDY)]
    before = parallel.stats()["preemptions"]
    assert [result.tokens for result in parallel.generate(starts, GREEDY)] == expected
    assert parallel.stats()["preemptions"] > before
    again = parallel.generate(prompts((64,)) * 2, GREEDY)
    assert [result.cached_tokens for result in again] == [0, 56]
    assert again[0].tokens == again[1].tokens == alone.generate(prompts((64,)), GREEDY)[0].tokens
    parallel.check_integrity()


def test_embeddings_and_prompt_logprobs(parallel: LLM, alone: LLM) -> None:
    for pooling in ("mean", "last"):
        ours, theirs = (llm.embed(prompts()[2:5], pooling=pooling) for llm in (parallel, alone))
        for one, other in zip(ours, theirs, strict=True):
            assert np.abs(np.array(one.vector) - np.array(other.vector)).max() < 1e-4
    params = msgspec.structs.replace(GREEDY, prompt_logprobs=2)
    ours, theirs = (llm.generate(prompts()[4], params) for llm in (parallel, alone))
    assert ours.prompt_logprobs is not None
    assert theirs.prompt_logprobs is not None
    assert_close(ours.prompt_logprobs[1:], theirs.prompt_logprobs[1:])


def test_each_rank_has_its_share(parallel: LLM, alone: LLM) -> None:
    assert parallel.facts["kernels"] == "torch"
    assert parallel.facts["tensor_parallel"] == 2
    assert parallel.facts["kv_tokens"] <= BLOCKS * 8
    norms = 4 * 4 * (4 * 64 + 2 * 32) + 4 * 64  # of all layers, which both ranks have
    assert parallel.facts["weights_bytes"] <= alone.facts["weights_bytes"] + norms
    assert len(other_ranks(parallel.facts["pid"])) == 1


def test_the_death_of_a_rank_ends_the_group(tiny: Path) -> None:
    """Every request ends with one error, and no process is left."""
    with LLM(str(tiny), device="cpu", tensor_parallel=2, threads=2, kv_memory="100MB") as llm:
        endless = SamplingParams(temperature=0.0, max_tokens=tiny_models.ENDLESS_TOKENS, ignore_eos=True)
        streams = [llm.stream([5, 6, place], endless) for place in range(4)]
        for stream in streams:
            next(stream)
        rank_0 = llm.facts["pid"]
        (rank_1,) = other_ranks(rank_0)
        os.kill(rank_1, signal.SIGKILL)
        for stream in streams:
            with pytest.raises(EngineDied, match="the engine process died"):
                list(stream)
        with pytest.raises(EngineDied):
            llm.generate([5, 6], GREEDY)
        until(lambda: all_gone([rank_0, rank_1]), "the end of all ranks")


def test_what_is_not_supported_is_said_before_anything_loads(folder: Path) -> None:
    def refused(match: str, **settings: object) -> None:
        with pytest.raises(InvalidSetting, match=match):
            LLM(str(folder), **{"device": "cpu", "tensor_parallel": 2} | settings)  # type: ignore[arg-type]

    refused("cannot be split over 3 ranks: 4 heads .*; possible are 2, 4$", tensor_parallel=3)
    refused("pipeline_parallel: Penstock does not divide the layers", pipeline_parallel=2)
    refused("quantize: on a CPU the ranks .* compute with torch", quantize="int8")
    refused("kv_dtype", kv_dtype="int8")
    refused("speculate: .* needs the native CPU kernels", speculate=f"draft:{folder}")
