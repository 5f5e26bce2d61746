"""Engines on GPUs as ranks of a group: alone with NCCL, whose collectives CUDA graphs contain; as another rank than
the one that draws; and two ranks in processes of their own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers import tiny_models
from helpers.lone_rank import NoFollowers, become_lone_rank
from helpers.rank_processes import all_gone, other_ranks
from helpers.ranks_on_one_gpu import share_one_gpu
from helpers.server_process import until
from penstock import LLM, SamplingParams, settings
from penstock.engine.process import ProcessEngine
from penstock.errors import EngineDied, OutOfMemory
from penstock.flow import Admit, Extend, Query, Row, StepPlan
from penstock.flow.ranks import RankLogits, RankSleep, RankStep, RankWake, ToRank
from penstock.forward import cuda_startup
from penstock.forward.cuda_pages import CudaPages
from penstock.forward.cuda_ranks import RankPlace, SilentRanks, silent_place
from penstock.forward.cuda_startup import StepSizes
from penstock.model.load_dense import load_dense
from penstock.model.weights.dummy_tensors import DeviceDummySource
from penstock.model.weights.place import Shard
from penstock.store.hf_folder import read
from penstock.store.kv_types import kv_types

GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
DRAWN = SamplingParams(temperature=1.0, top_p=0.9, presence_penalty=0.5, max_tokens=24, seed=3, ignore_eos=True)
PROMPTS = [list(range(first, first + length)) for first, length in ((10, 3), (20, 80), (2, 200), (50, 17))]
PARAMS = [GREEDY, DRAWN, msgspec.structs.replace(GREEDY, prompt_logprobs=2, logprobs=2), DRAWN]
OPTIONS: dict[str, Any] = {"device": "cuda", "kv_memory": "256MiB"}
DEVICE = torch.device("cuda")


def answers(llm: LLM) -> list[list[int]]:
    found = [result.tokens for result in llm.generate(PROMPTS, PARAMS)]
    llm.check_integrity()
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a vocabulary that two ranks do not divide."""
    return tiny_models.make("qwen3", tmp_path, vocab_size=tiny_models.VOCAB + 1)


@pytest.fixture
def lone_rank(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[], NoFollowers]]:
    def become() -> NoFollowers:
        followers = NoFollowers()
        meeting = tmp_path / "meeting"
        meeting.mkdir()
        become_lone_rank(str(meeting), monkeypatch.setattr, followers)
        return followers

    yield become
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


@pytest.mark.gpu
@pytest.mark.parametrize("step_tokens", [8192, 64])
def test_one_rank_with_nccl_draws_the_tokens_of_none(
    folder: Path, lone_rank: Callable[[], NoFollowers], step_tokens: int
) -> None:
    options = OPTIONS | {"dtype": "float32", "step_tokens": step_tokens}
    with LLM(str(folder), **options) as llm:
        expected = answers(llm)
    followers = lone_rank()
    with LLM(str(folder), **options) as llm:
        assert answers(llm) == expected
    steps = [message for message in followers.sent if isinstance(message, RankStep)]
    logits = [message for message in followers.sent if isinstance(message, RankLogits)]
    assert len(steps) > 20
    assert 0 < len(logits) < len(steps)  # decode graphs contain theirs
    assert any(step.all_hidden for step in steps)
    decode = msgspec.msgpack.Decoder(ToRank).decode
    assert [decode(msgspec.msgpack.encode(message)) for message in followers.sent] == followers.sent


@pytest.mark.gpu
def test_a_lone_rank_sleeps_and_wakes(
    folder: Path, lone_rank: Callable[[], NoFollowers], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cuda_startup, "owns_process", lambda: True)
    followers = lone_rank()
    with LLM(str(folder), **OPTIONS) as llm:
        loop, expected = llm._driver.engine.loop, answers(llm)
        assert loop.sleep()
        loop.wake()
        assert answers(llm) == expected
        del loop
    assert [type(one) for one in followers.sent if isinstance(one, RankSleep | RankWake)] == [RankSleep, RankWake]


@pytest.mark.gpu
def test_16_bits_differ_by_rounding(folder: Path, lone_rank: Callable[[], NoFollowers]) -> None:
    params = msgspec.structs.replace(GREEDY, prompt_logprobs=0, max_tokens=1)

    def measured() -> torch.Tensor:
        with LLM(str(folder), **OPTIONS, dtype="bfloat16") as llm:
            found = llm.generate(PROMPTS[2], params).prompt_logprobs
            assert found is not None
            return torch.tensor([entry.logprob for entry in found[1:] if entry is not None])

    before = measured()
    lone_rank()
    assert (measured() - before).abs().mean() < 0.05


SHAPE = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 256, "intermediate_size": 512,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 5001, "num_hidden_layers": 2,
    "max_position_embeddings": 4096, "torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False,
    "rms_norm_eps": 1e-5, "rope_theta": 1e4, "tie_word_embeddings": True,
}  # fmt: skip
SIZES = StepSizes(block_size=16, context=2048, step_tokens=2048, max_sequences=24)


@pytest.mark.gpu
def test_all_ranks_launch_the_same_in_the_same_order(tmp_path: Path) -> None:
    """Each without the others, so numbers mean nothing: a start with its graphs, and some steps."""
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    spec = read(tmp_path, "tiny", weights=False).spec
    calls = []
    for rank in range(2):
        ranks = CountedRanks(rank, 2)
        place, dtype = RankPlace(ranks, spec.vocab_size), torch.bfloat16
        source = DeviceDummySource(DEVICE)
        model = load_dense(spec, source, dtype=dtype, device=DEVICE, context=2048, shard=Shard(rank, 2))
        made, extras = CudaPages(kv_types("bfloat16"), None, dtype, DEVICE), cuda_startup.Extras(place=place)
        capture = cuda_startup.run_largest_steps(model, SIZES, made, dtype=dtype, extras=extras)
        backend = cuda_startup._backend(model, SIZES, made, dtype, extras)
        cuda_startup.capture_graphs(backend, SIZES, capture)
        backend.follow(FOLLOWED)
        torch.cuda.synchronize()
        calls.append(ranks.calls)
    assert len(calls[0]) == len(calls[1]) > 100
    assert [pair for pair in zip(*calls, strict=True) if pair[0] != pair[1]] == []


def _admits(count: int, length: int) -> list[Admit]:
    return [Admit(slot, [1] * length, length, GREEDY, 0, 0, (), [[0] * (length // 16 + 1)]) for slot in range(count)]


FOLLOWED = [
    RankStep(StepPlan(0, _admits(3, 9), [], [Row(slot, 0, 9, 1) for slot in range(3)]), False),
    RankStep(StepPlan(1, [], [Extend(0, 0, [0])], [Row(slot, 9, 1, 1) for slot in range(3)]), False),
    RankStep(StepPlan(2, _admits(1, 900), [], [Row(0, 0, 900, 1)]), False),
    RankLogits([899]),
]


class CountedRanks(SilentRanks):
    """The order of the collectives, which has to be the same on all ranks."""

    def __init__(self, rank: int, world: int) -> None:
        super().__init__(rank, world)
        self.calls: list[tuple[str, tuple[int, ...]]] = []

    def hand_out(self, values: torch.Tensor) -> None:
        self.calls.append(("hand_out", tuple(values.shape)))

    def add_up(self, partial: torch.Tensor) -> None:
        self.calls.append(("add_up", tuple(partial.shape)))

    def gather(self, part: torch.Tensor) -> list[torch.Tensor] | None:
        self.calls.append(("gather", tuple(part.shape)))
        return super().gather(part)


def test_an_engine_of_one_device_has_no_ranks() -> None:
    place = silent_place(Shard(), 100)
    assert place.ranks is None
    assert place.draws
    place.tell(RankSleep())
    with place.telling(RankWake()):
        pass


def test_all_ranks_or_none() -> None:
    """Also one that could is told, and undoes it."""
    done: list[str] = []

    class Others(SilentRanks):
        can = True

        def least(self, numbers: Any) -> list[int]:
            return [min(*numbers, int(self.can))]

    others = Others(0, 2)
    place = RankPlace(others, 100)
    place.together(lambda: done.append("did"), lambda: done.append("undid"))
    assert done == ["did"]
    others.can = False
    with pytest.raises(OutOfMemory, match="another rank of the engine"):
        place.together(lambda: done.append("did"), lambda: done.append("undid"))
    assert done == ["did", "did", "undid"]

    def fails() -> None:
        raise OutOfMemory("no room here", param="model")

    for others.can in (False, True):
        with pytest.raises(OutOfMemory, match="no room here"):
            place.together(fails, lambda: done.append("undid"))
    assert len(done) == 3


@pytest.mark.parametrize("at", ["attempt", "agreement", "undoing"])
def test_another_failure_of_rank_0_ends_the_group_at_once(at: str) -> None:
    """The others wait for it, and NCCL would for a minute."""

    def fails() -> None:
        raise RuntimeError("cudaErrorLaunchFailure")

    class Others(SilentRanks):
        asked = 0

        def least(self, numbers: Any) -> list[int]:
            self.asked += 1
            return fails() or [0] if at == "agreement" else [0]

    others = Others(0, 2)
    place = RankPlace(others, 100, NoFollowers())
    attempt, undo = (fails if one == at else (lambda: None) for one in ("attempt", "undoing"))
    with pytest.raises(SystemExit) as caught:
        place.together(attempt, undo)
    assert (caught.value.code, others.asked) == (1, int(at != "attempt"))


def test_one_of_another_rank_ends_its_process() -> None:
    """`rank_worker` does, which rank 0 notices."""

    def fails() -> None:
        raise RuntimeError("cudaErrorLaunchFailure")

    with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"):
        RankPlace(SilentRanks(1, 2), 100).together(fails)


# Two ranks in processes of their own on one GPU, without graphs.
SHARED = OPTIONS | {"tensor_parallel": 2, "dtype": "float32"}


@pytest.mark.gpu
@pytest.mark.parametrize("options", [{}, {"step_tokens": 64, "max_sequences": 2}, {"lookahead": 0}])
def test_two_ranks_draw_the_tokens_of_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    with LLM(str(folder), **OPTIONS, dtype="float32") as llm:
        expected = answers(llm)
    share_one_gpu(monkeypatch, 2)
    with LLM(str(folder), **SHARED, **options) as llm:
        assert llm.facts["tensor_parallel"] == 2
        assert answers(llm) == expected
        (rank_1,) = other_ranks(llm.facts["pid"])
        pids = [llm.facts["pid"], rank_1]
    until(lambda: all_gone(pids), "the end of all ranks")


@pytest.mark.gpu
def test_the_death_of_a_rank_ends_the_group(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_one_gpu(monkeypatch, 2)
    with LLM(str(folder), **SHARED) as llm:
        stream = llm.stream([5, 6], msgspec.structs.replace(GREEDY, max_tokens=200))
        next(stream)
        rank_0 = llm.facts["pid"]
        (rank_1,) = other_ranks(rank_0)
        os.kill(rank_1, signal.SIGKILL)
        with pytest.raises(EngineDied):
            list(stream)
        until(lambda: all_gone([rank_0, rank_1]), "the end of all ranks")


@pytest.mark.gpu
def test_all_ranks_sleep_and_wake(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    share_one_gpu(monkeypatch, 2)
    engine = ProcessEngine(settings.load({"model": str(folder), **SHARED}, environ={}), b"secret")
    try:
        pid = engine.wait_ready()["pid"]
        ranks = other_ranks(pid)
        for number, kind in enumerate(("sleep", "wake", "sleep", "wake")):
            engine.query(Query(number, kind))
            replies = until(lambda: engine.receive(1.0), kind)
            assert [reply.error for reply in replies] == [None]  # type: ignore[union-attr]
        assert other_ranks(pid) == ranks
    finally:
        engine.close()
