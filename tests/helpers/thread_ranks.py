"""The ranks of a tensor-parallel group as threads of one process, with sums in memory: the same operations and weights
as in processes of their own, in milliseconds.

    models = [load(Shard(rank, 2)) for rank in range(2)]
    results = run_ranks(2, lambda ranks: forward(models[ranks.rank], ranks))
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
WAIT_S = 60.0  # for the other ranks: one that has failed would never come


class _Exchange:
    """Where ranks put their tensors for the others."""

    def __init__(self, world: int) -> None:
        self.barrier = threading.Barrier(world, timeout=WAIT_S)
        self.tensors: list[Tensor] = [torch.empty(0)] * world


class ThreadRanks:
    """Implements `kernels.rank_ops.Ranks`."""

    def __init__(self, rank: int, world: int, exchange: _Exchange) -> None:
        self.rank, self.world, self._exchange = rank, world, exchange
        self.added_up = self.gathered = 0  # calls so far

    def hand_out(self, values: Tensor) -> None:
        values.copy_(self._swap(values)[0])
        self._exchange.barrier.wait()

    def add_up(self, partial: Tensor) -> None:
        self.added_up += 1
        everyone = self._swap(partial)
        partial.copy_(torch.stack(everyone).sum(0))
        self._exchange.barrier.wait()

    def gather(self, part: Tensor) -> list[Tensor] | None:
        self.gathered += 1
        everyone = self._swap(part)
        self._exchange.barrier.wait()
        return everyone if self.rank == 0 else None

    def least(self, numbers: Sequence[int]) -> list[int]:
        everyone = self._swap(torch.tensor(numbers))
        self._exchange.barrier.wait()
        return torch.stack(everyone).amin(0).tolist()  # type: ignore[no-any-return]

    def close(self) -> None: ...

    def _swap(self, tensor: Tensor) -> list[Tensor]:
        self._exchange.tensors[self.rank] = tensor.clone()
        self._exchange.barrier.wait()
        return list(self._exchange.tensors)


class Baton:
    """In place of the barrier, where one thread runs at a time, such as the one that Triton's interpreter belongs to:
    whoever waits for others hands it on."""

    def __init__(self, barrier: threading.Barrier, lock: threading.Lock) -> None:
        self._barrier, self._lock = barrier, lock

    def wait(self) -> None:
        self._lock.release()
        try:
            self._barrier.wait()
        finally:
            self._lock.acquire()

    def abort(self) -> None:
        self._barrier.abort()


def take_turns(ranks: ThreadRanks, lock: threading.Lock) -> None:
    """All ranks of its group hold `lock` while they run."""
    ranks._exchange.barrier = Baton(ranks._exchange.barrier, lock)  # type: ignore[assignment]


def thread_ranks(world: int) -> list[ThreadRanks]:
    """For threads of the caller's."""
    exchange = _Exchange(world)
    return [ThreadRanks(rank, world, exchange) for rank in range(world)]


def run_ranks(world: int, work: Callable[[ThreadRanks], T], *, in_turns: bool = False) -> list[T]:
    """What each rank's `work` gives. `in_turns`: one runs at a time."""
    exchange, lock = _Exchange(world), threading.Lock()
    if in_turns:
        take_turns(ThreadRanks(0, world, exchange), lock)

    def run(rank: int) -> T:
        try:
            with lock if in_turns else nullcontext():
                return work(ThreadRanks(rank, world, exchange))
        except BaseException:
            exchange.barrier.abort()
            raise

    with ThreadPoolExecutor(world) as pool:
        return [future.result() for future in [pool.submit(run, rank) for rank in range(world)]]
