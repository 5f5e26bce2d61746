"""Two ranks of the CUDA backend, one led by the other: the tokens of one. In Triton's interpreter (TRITON_INTERPRET=1),
where ranks are threads of which one runs at a time, and graphs run their work again; `test_interpreted_ranks` starts
it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers import tiny_models
from helpers.adapter_engine import named
from helpers.adapter_samples import LINEAR, write_adapter
from helpers.interpreted_backend import CPU, Copied, HostOperations, RepeatedCapture
from helpers.thread_ranks import ThreadRanks, take_turns, thread_ranks
from helpers.triton_device import INTERPRETED
from penstock.adapters import AdapterCache
from penstock.flow import Adapter, Admit, Row, SamplingParams, StepPlan
from penstock.flow.ranks import FromRank, RankAdapter, RankDrop, RankLoad, RankLogits, RankStep, RankWork, ToRank
from penstock.forward import chunk_graphs, cuda_backend, decode_graphs
from penstock.forward.adapter_blobs import most_numbers
from penstock.forward.adapter_loading import most_bytes, share_spec
from penstock.forward.cuda_backend import CudaBackend
from penstock.forward.cuda_ranks import ALONE, RankPlace
from penstock.forward.device_adapters import DeviceAdapter, device_adapters, device_copier
from penstock.forward.memory import CacheSize
from penstock.forward.rank_adapters import FollowingAdapters, work_of
from penstock.forward.step_adapters import Adapters
from penstock.forward.torch_adapters import torch_loader
from penstock.forward.torch_backend import TorchBackend
from penstock.forward.torch_loading import allocate_pages
from penstock.model import open_source
from penstock.model.load_dense import load_dense
from penstock.model.weights.place import WHOLE, Shard
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read

pytestmark = [
    pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter alone"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of what masks leave out
]

T = TypeVar("T")
SIZE = CacheSize(4, (40,), (), 64)
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.9, top_k=20, presence_penalty=0.5)
SCORED = SamplingParams(temperature=0.0, prompt_logprobs=1)


class Follower:
    """Implements `Followers`: the other rank, as a thread."""

    def __init__(self, ranks: ThreadRanks, lock: threading.Lock, files: ModelFiles, adapter_bytes: int = 0) -> None:
        self.sent: list[RankWork] = []
        self.answers: queue.Queue[RankAdapter] = queue.Queue()
        self.asked: queue.Queue[RankWork | None] = queue.Queue()
        self.lock, self._ranks, self._files, self._adapter_bytes = lock, ranks, files, adapter_bytes
        self.adapters: FollowingAdapters[DeviceAdapter] | None = None
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self.lock:
            try:
                shard, held = Shard(1, 2), None
                if self._adapter_bytes:
                    copier = device_copier(self._files.spec, torch.float32, CPU, self._adapter_bytes, shard=shard)
                    self.adapters = FollowingAdapters(copier.start, copier.take_finished)
                    held = Adapters(self.adapters, copier.memory)
                backend = backend_of(self._files, shard, self._ranks, held)
                backend.follow(work_of(LinkToLeader(self), self.adapters))
            except Ended:
                pass
            except BaseException as error:
                self.failure = error

    def wait_loaded(self) -> int:
        return 0

    def send(self, message: RankWork) -> None:
        decoded: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToRank)
        self.sent.append(decoded)
        self.asked.put(decoded)

    def receive(self, wait_s: float) -> list[tuple[int, RankAdapter]]:
        return [(1, answer) for answer in taken(self.answers, self.lock, wait_s)]

    def close(self) -> None:
        self.asked.put(None)
        self.thread.join(60)


class LinkToLeader:
    """Implements `Leader` on the other rank."""

    def __init__(self, follower: Follower) -> None:
        self._follower = follower

    def loaded(self, weights_bytes: int) -> None: ...

    def receive(self, timeout_s: float | None) -> list[RankWork]:
        messages = taken(self._follower.asked, self._follower.lock, timeout_s)
        if None in messages:
            raise Ended
        return [message for message in messages if message is not None]

    def send(self, message: RankAdapter) -> None:
        decoded: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=FromRank)
        self._follower.answers.put(decoded)


class Ended(Exception):
    """Rank 0 has."""


def taken(messages: queue.Queue[T], lock: threading.Lock, wait_s: float | None) -> list[T]:
    """The first, if there is one in time. The other thread runs meanwhile."""
    lock.release()
    try:
        return [messages.get(timeout=wait_s)]
    except queue.Empty:
        return []
    finally:
        lock.acquire()


def backend_of(
    files: ModelFiles, shard: Shard, ranks: ThreadRanks | None, adapters: Adapters | None = None
) -> CudaBackend:
    """With its graphs."""
    source = open_source(files.weights, files.format)
    model = load_dense(files.spec, source, dtype=torch.float32, device=CPU, context=SIZE.context, shard=shard)
    place = ALONE if ranks is None else RankPlace(ranks, files.spec.vocab_size)
    pages = allocate_pages(model.spec, SIZE, torch.float32, CPU)
    backend = CudaBackend(
        model,
        pages,
        dtype=torch.float32,
        context=SIZE.context,
        max_sequences=4 if adapters is None else 2,
        place=place,
        adapters=adapters,
    )
    graphs = backend.graphs(16)
    graphs.capture(RepeatedCapture())  # type: ignore[arg-type]
    backend.use(graphs)
    return backend


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunk_graphs, cuda_backend, decode_graphs):
        monkeypatch.setattr(module, "CudaOperations", HostOperations)
    monkeypatch.setattr(cuda_backend, "Readback", Copied)


def admit(slot: int, params: SamplingParams, length: int = 6, adapter: Adapter | None = None) -> Admit:
    tokens, blocks = [5 + token + slot for token in range(length)], [list(range(1 + 8 * slot, 9 + 8 * slot))]
    return Admit(slot, tokens, length, params, 1, 0, (), blocks, adapter=adapter)


PLANS = [
    StepPlan(0, [admit(0, GREEDY)], [], [Row(0, 0, 4, 0)]),  # a chunk, as a decode graph
    StepPlan(1, [admit(1, DRAWN)], [], [Row(0, 4, 2, 1), Row(1, 0, 6, 1)]),  # too many tokens for one
    StepPlan(2, [], [], [Row(0, 6, 1, 1), Row(1, 6, 1, 1)]),
    StepPlan(3, [], [], [Row(0, 7, 1, 1), Row(1, 7, 1, 1)]),
    StepPlan(4, [admit(2, SCORED, 9)], [], [Row(1, 8, 1, 1), Row(2, 0, 9, 1)]),
    StepPlan(5, [], [], [Row(0, 8, 1, 1), Row(2, 9, 1, 1)]),
]


def run(backend: CudaBackend, ahead: int, plans: Sequence[StepPlan] = PLANS) -> list[list[Any]]:
    """Tokens and scores of each step. `ahead`: steps launched before the oldest is collected."""
    found = []
    for number in range(len(plans) + ahead):
        if number < len(plans):
            backend.launch(plans[number])
        if number >= ahead:
            found.append([(row.tokens, row.prompt_logprobs) for row in backend.collect().rows])
    return found


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_tokens_of_one_rank(ahead: int, tmp_path: Path) -> None:
    """With a vocabulary that they do not divide."""
    files = read(tiny_models.make("qwen2", tmp_path, vocab_size=tiny_models.VOCAB + 1), "tiny")
    expected = run(backend_of(files, WHOLE, None), ahead)
    lock, (first, second) = threading.Lock(), thread_ranks(2)
    take_turns(first, lock)
    with lock:
        follower = Follower(second, lock, files)
        backend = backend_of(files, Shard(0, 2), first)
        backend.lead(follower)
        found = run(backend, ahead)
    follower.close()
    assert follower.failure is None
    assert [[tokens for tokens, _ in step] for step in found] == [[tokens for tokens, _ in step] for step in expected]
    ours, theirs = (
        [entry.logprob for step in one for _, scores in step for entry in scores or ()] for one in (found, expected)
    )
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert len(ours) > 0
    steps = [message for message in follower.sent if isinstance(message, RankStep)]
    assert [step.all_hidden for step in steps] == [False, False, False, False, True, False]
    assert 0 < sum(isinstance(message, RankLogits) for message in follower.sent) < len(steps)


def adapted_plans(number: int, adapter: Adapter) -> list[StepPlan]:
    """A step of kernels that are launched one by one, and one that is a graph; a row has no adapter."""
    admits = [admit(0, SCORED, 4, adapter), admit(1, GREEDY, 2)]
    return [
        StepPlan(number, admits, [], [Row(0, 0, 4, 1), Row(1, 0, 2, 1)]),
        StepPlan(number + 1, [], [], [Row(0, 4, 1, 1), Row(1, 2, 1, 1)]),
    ]


def run_adapted(backend: Any, cache: AdapterCache[Any], adapters: list[Adapter]) -> list[Any]:
    """With each of them, and with the first once more."""
    found: list[Any] = []
    for turn, adapter in enumerate((*adapters, adapters[0])):
        cache.pin(adapter)
        assert cache.start(adapter)
        while cache.loading:
            assert all(error is None for _, error in cache.take_finished(wait_s=0.05))
        found += run(backend, 0, adapted_plans(2 * turn, adapter))
        cache.unpin(adapter)
    return found


def test_adapters_of_one_rank(tmp_path: Path) -> None:
    """One makes room for another and comes again; its shares are in step, with a vocabulary that is not divided
    evenly."""
    folder = tiny_models.make("qwen2", tmp_path, vocab_size=tiny_models.VOCAB + 1, num_hidden_layers=1)
    files, kinds = read(folder, "tiny"), ({"rank": 3, "modules": (*LINEAR, "lm_head", "embed_tokens")}, {"rank": 18})
    spec = files.spec
    made = [
        named(write_adapter(tmp_path / f"a{seed}", spec, seed=seed, size=0.5, **kind))  # type: ignore[arg-type]
        for seed, kind in enumerate(kinds)
    ]
    loader = torch_loader(spec, torch.float32, WHOLE)
    whole = AdapterCache(loader, lambda one: most_bytes(one, spec, 4), 1 << 30)
    model = load_dense(spec, open_source(files.weights, files.format), dtype=torch.float32, device=CPU, context=64)
    pages = allocate_pages(model.spec, SIZE, torch.float32, CPU)
    alone = TorchBackend(model, pages, context=SIZE.context, max_sequences=2, adapters=whole)
    expected = run_adapted(alone, whole, made)
    room = max(4 * sum(most_numbers(one, share_spec(spec, Shard(1, 2))).values()) for one in made)
    lock, (first, second) = threading.Lock(), thread_ranks(2)
    take_turns(first, lock)
    with lock:
        follower = Follower(second, lock, files, room)
        shard = Shard(0, 2)
        copier = device_copier(spec, torch.float32, CPU, room, shard=shard)
        cache = device_adapters(copier, room, follower, world=2)
        backend = backend_of(files, shard, first, Adapters(cache, copier.memory))
        backend.lead(follower)
        found = run_adapted(backend, cache, made)
    follower.close()
    assert follower.failure is None
    assert [[tokens for tokens, _ in step] for step in found] == [[tokens for tokens, _ in step] for step in expected]
    ours, theirs = ([entry.logprob for step in one for entry in step[0][1] or ()] for one in (found, expected))
    assert ours == pytest.approx(theirs, abs=1e-4)
    assert len({tuple(step[0][0]) for step in found}) == 4
    assert [one.adapter.name for one in follower.sent if isinstance(one, RankLoad)] == ["a0", "a1", "a0"]
    assert sum(isinstance(message, RankDrop) for message in follower.sent) == 2
