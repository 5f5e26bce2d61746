"""A backend on rank 0 and the other ranks behind it, which are threads here: the tokens of one rank."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator, Sequence

import msgspec
import pytest
import torch

from helpers import tiny_models
from helpers.paged_model import CPU
from helpers.thread_ranks import run_ranks, thread_ranks
from penstock.flow import Admit, Extend, Row, SamplingParams, StepPlan
from penstock.flow.ranks import RankAdapter, RankLogits, RankStep, RankWork, ToRank
from penstock.forward.memory import CacheSize
from penstock.forward.rank_forward import LeadingForward, agreed_size, follow
from penstock.forward.torch_backend import TorchBackend
from penstock.forward.torch_forward import Computed, TorchForward
from penstock.forward.torch_loading import allocate_pages
from penstock.kernels.interface import Pages
from penstock.kernels.rank_ops import RankOperations
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import Decoder, open_source
from penstock.model.load_dense import load_dense
from penstock.model.weights.place import WHOLE, Shard
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read

WORLD = 2
SIZE = CacheSize(4, (40,), (), 64)
PROMPT = [5, 6, 7, 8, 9, 10]
GREEDY = SamplingParams(temperature=0.0)


class QueuedFollowers:
    """Implements `Followers`. What is sent goes through msgpack, as between processes."""

    def __init__(self) -> None:
        self.queue: queue.Queue[RankWork | None] = queue.Queue()
        self._decode = msgspec.msgpack.Decoder(ToRank).decode
        self.sent: list[ToRank] = []

    def wait_loaded(self) -> int:
        return 0

    def send(self, message: RankWork) -> None:
        decoded = self._decode(msgspec.msgpack.encode(message))
        self.sent.append(decoded)
        self.queue.put(decoded)

    def receive(self, wait_s: float) -> list[tuple[int, RankAdapter]]:
        return []

    def close(self) -> None:
        self.queue.put(None)


class Rank:
    def __init__(self, files: ModelFiles, shard: Shard) -> None:
        source = open_source(files.weights, files.format)
        self.model: Decoder = load_dense(
            files.spec, source, dtype=torch.float32, device=CPU, context=SIZE.context, shard=shard
        )
        self.pages: list[Pages] = allocate_pages(self.model.spec, SIZE, torch.float32, CPU)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    return read(tiny_models.make("qwen2", tmp_path_factory.mktemp("model")), "tiny")


@pytest.fixture
def alone(files: ModelFiles) -> TorchBackend:
    rank = Rank(files, WHOLE)
    return TorchBackend(rank.model, rank.pages, context=SIZE.context, max_sequences=4)


@pytest.fixture
def group(files: ModelFiles) -> Iterator[tuple[TorchBackend, QueuedFollowers]]:
    vocabulary = [Shard(rank, WORLD).tokens(files.spec.vocab_size) for rank in range(WORLD)]
    first, second = (Rank(files, Shard(rank, WORLD)) for rank in range(WORLD))
    followers = QueuedFollowers()
    leading, following = (RankOperations(TorchOperations(), ranks, vocabulary) for ranks in thread_ranks(WORLD))
    backend = TorchBackend(
        first.model, first.pages, context=SIZE.context, max_sequences=4, ops=leading, followers=followers
    )
    forward = TorchForward(second.model, second.pages, following, context=SIZE.context, slots=4)
    thread = threading.Thread(target=follow, args=(forward, iter(followers.queue.get, None)), daemon=True)
    thread.start()
    yield backend, followers
    assert not backend.release_memory()  # it has to be built anew: its followers end
    thread.join(60)
    assert not thread.is_alive()


def admit(slot: int, params: SamplingParams = GREEDY) -> Admit:
    tokens = [token + slot for token in PROMPT]
    return Admit(slot, tokens, len(tokens), params, 1, 0, (), [[1 + 2 * slot, 2 + 2 * slot]])


def run(backend: TorchBackend, plans: list[StepPlan]) -> list[list[list[int]]]:
    results = []
    for plan in plans:
        backend.launch(plan)
        results.append([row.tokens for row in backend.collect().rows])
    return results


PLANS = [
    StepPlan(0, [admit(0)], [], [Row(0, 0, 4, 0)]),  # a chunk
    StepPlan(1, [admit(1, SamplingParams(temperature=0.9))], [], [Row(0, 4, 2, 1), Row(1, 0, 6, 1)]),
    StepPlan(2, [], [], [Row(0, 6, 1, 1), Row(1, 6, 1, 1)]),
    StepPlan(3, [], [Extend(0, 0, [9])], [Row(0, 7, 1, 1), Row(1, 7, 1, 1)]),
    StepPlan(4, [], [], [Row(0, 8, 1, 1)]),
    StepPlan(5, [admit(2)], [], [Row(0, 9, 1, 1), Row(2, 0, 6, 1)]),
]


def test_the_tokens_of_one_rank(alone: TorchBackend, group: tuple[TorchBackend, QueuedFollowers]) -> None:
    backend, followers = group
    assert run(backend, PLANS) == run(alone, PLANS)
    steps = [message for message in followers.sent if isinstance(message, RankStep)]
    assert [len(step.plan.admits) for step in steps] == [1, 1, 0, 0, 0, 1]
    logits = [message for message in followers.sent if isinstance(message, RankLogits)]
    assert len(logits) == len(steps) - 1  # the chunk draws nothing


def test_a_failure_to_draw_leaves_the_ranks_in_step(
    alone: TorchBackend, group: tuple[TorchBackend, QueuedFollowers], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend, _ = group
    run(backend, PLANS[:2])

    def fails(*_: object) -> None:
        raise ValueError("a broken mask")

    with monkeypatch.context() as patched:
        patched.setattr(backend._sampler, "sample", fails)
        with pytest.raises(ValueError, match="a broken mask"):
            backend.launch(PLANS[2])
    backend.reset()
    assert run(backend, [PLANS[5]])[0][1] == run(alone, PLANS)[5][1]


def test_a_failure_to_compute_ends_the_process(files: ModelFiles) -> None:
    """Which the engine's loop would otherwise take for the failure of one step."""

    class Broken(TorchForward):
        def compute(self, rows: Sequence[Row], *, all_hidden: bool) -> Computed:
            raise RuntimeError("a rank does not come")

        logits = compute  # type: ignore[assignment]

    rank = Rank(files, WHOLE)
    own = Broken(rank.model, rank.pages, TorchOperations(), context=SIZE.context, slots=4)
    forward = LeadingForward(own, QueuedFollowers())
    with pytest.raises(SystemExit):
        forward.compute([], all_hidden=False)
    with pytest.raises(SystemExit):
        forward.logits(torch.empty(0), [])


def test_pages_are_as_many_as_the_rank_with_the_least_room_has() -> None:
    sizes = [CacheSize(4, (40, 30), (8, 8), 64), CacheSize(4, (38, 31), (8, 8), 80)]
    agreed = run_ranks(WORLD, lambda ranks: agreed_size(sizes[ranks.rank], ranks))
    assert agreed == [CacheSize(4, (38, 30), (8, 8), 64)] * WORLD
