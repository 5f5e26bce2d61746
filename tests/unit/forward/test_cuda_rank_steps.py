"""Two ranks of the CUDA backend, one led by the other: the tokens of one. In Triton's interpreter (TRITON_INTERPRET=1),
where ranks are threads of which one runs at a time, and graphs run their work again; `test_interpreted_ranks` starts
it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed")

from helpers import tiny_models
from helpers.interpreted_backend import CPU, Copied, HostOperations, RepeatedCapture
from helpers.thread_ranks import ThreadRanks, thread_ranks
from helpers.triton_device import INTERPRETED
from penstock.flow import Admit, Row, SamplingParams, StepPlan
from penstock.flow.ranks import RankLogits, RankStep, RankWork, ToRank
from penstock.forward import chunk_graphs, cuda_backend, decode_graphs
from penstock.forward.cuda_backend import CudaBackend
from penstock.forward.cuda_ranks import ALONE, RankPlace
from penstock.forward.memory import CacheSize
from penstock.forward.torch_loading import allocate_pages
from penstock.model import open_source
from penstock.model.load_dense import load_dense
from penstock.model.weights.place import WHOLE, Shard
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="runs in Triton's interpreter alone")

SIZE = CacheSize(4, (40,), (), 64)
GREEDY = SamplingParams(temperature=0.0)
DRAWN = SamplingParams(temperature=0.9, top_k=20, presence_penalty=0.5)
SCORED = SamplingParams(temperature=0.0, prompt_logprobs=1)


class Baton:
    """The interpreter belongs to one thread at a time: whoever waits for others hands it on."""

    def __init__(self, barrier: threading.Barrier, lock: threading.Lock) -> None:
        self._barrier, self._lock = barrier, lock

    def wait(self) -> None:
        self._lock.release()
        try:
            self._barrier.wait()
        finally:
            self._lock.acquire()


class Follower:
    """Implements `Followers`: the other rank, as a thread."""

    def __init__(self, ranks: ThreadRanks, lock: threading.Lock, files: ModelFiles) -> None:
        self.sent: list[RankWork] = []
        self._queue: queue.Queue[RankWork | None] = queue.Queue()
        self._lock, self._ranks, self._files = lock, ranks, files
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self._lock:
            try:
                backend_of(self._files, Shard(1, 2), self._ranks).follow(self._work())
            except BaseException as error:
                self.failure = error

    def _work(self) -> Iterator[RankWork]:
        while True:
            self._lock.release()
            try:
                message = self._queue.get()
            finally:
                self._lock.acquire()
            if message is None:
                return
            yield message

    def wait_loaded(self) -> int:
        return 0

    def send(self, message: RankWork) -> None:
        decoded: Any = msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=ToRank)
        self.sent.append(decoded)
        self._queue.put(decoded)

    def close(self) -> None:
        self._queue.put(None)


def backend_of(files: ModelFiles, shard: Shard, ranks: ThreadRanks | None) -> CudaBackend:
    """With its graphs."""
    source = open_source(files.weights, files.format)
    model = load_dense(files.spec, source, dtype=torch.float32, device=CPU, context=SIZE.context, shard=shard)
    place = ALONE if ranks is None else RankPlace(ranks, files.spec.vocab_size)
    pages = allocate_pages(model.spec, SIZE, torch.float32, CPU)
    backend = CudaBackend(model, pages, dtype=torch.float32, context=SIZE.context, max_sequences=4, place=place)
    graphs = backend.graphs(16)
    graphs.capture(RepeatedCapture())  # type: ignore[arg-type]
    backend.use(graphs)
    return backend


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chunk_graphs, cuda_backend, decode_graphs):
        monkeypatch.setattr(module, "CudaOperations", HostOperations)
    monkeypatch.setattr(cuda_backend, "Readback", Copied)


def admit(slot: int, params: SamplingParams, length: int = 6) -> Admit:
    tokens = [5 + token + slot for token in range(length)]
    return Admit(slot, tokens, length, params, 1, 0, (), [list(range(1 + 8 * slot, 9 + 8 * slot))])


PLANS = [
    StepPlan(0, [admit(0, GREEDY)], [], [Row(0, 0, 4, 0)]),  # a chunk, as a decode graph
    StepPlan(1, [admit(1, DRAWN)], [], [Row(0, 4, 2, 1), Row(1, 0, 6, 1)]),  # too many tokens for one
    StepPlan(2, [], [], [Row(0, 6, 1, 1), Row(1, 6, 1, 1)]),
    StepPlan(3, [], [], [Row(0, 7, 1, 1), Row(1, 7, 1, 1)]),
    StepPlan(4, [admit(2, SCORED, 9)], [], [Row(1, 8, 1, 1), Row(2, 0, 9, 1)]),
    StepPlan(5, [], [], [Row(0, 8, 1, 1), Row(2, 9, 1, 1)]),
]


def run(backend: CudaBackend, ahead: int) -> list[list[Any]]:
    """Tokens and scores of each step. `ahead`: steps launched before the oldest is collected."""
    found = []
    for number in range(len(PLANS) + ahead):
        if number < len(PLANS):
            backend.launch(PLANS[number])
        if number >= ahead:
            found.append([(row.tokens, row.prompt_logprobs) for row in backend.collect().rows])
    return found


@pytest.mark.parametrize("ahead", [0, 1])
def test_the_tokens_of_one_rank(ahead: int, tmp_path: Path) -> None:
    """With a vocabulary that they do not divide."""
    files = read(tiny_models.make("qwen2", tmp_path, vocab_size=tiny_models.VOCAB + 1), "tiny")
    expected = run(backend_of(files, WHOLE, None), ahead)
    lock, (first, second) = threading.Lock(), thread_ranks(2)
    first._exchange.barrier = Baton(first._exchange.barrier, lock)  # type: ignore[assignment]
    with lock:
        follower = Follower(second, lock, files)
        backend = backend_of(files, Shard(0, 2), first)
        backend.lead(follower)
        found = run(backend, ahead)
    follower.close()
    follower.thread.join(60)
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
