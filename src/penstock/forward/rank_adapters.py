"""Adapters on several ranks: each has its share of them.

Rank 0's cache decides what is loaded and what makes room. The other ranks are told in the order of the steps, load
beside them as rank 0 does, and report. An adapter is resident when all of them have it, so no step has rows of one that
a rank lacks; if one of them fails, none keeps it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.adapters.loader import Loader
from penstock.errors import AdapterLoadFailed, EngineDied, PenstockError
from penstock.flow import Adapter
from penstock.flow.ranks import AdapterPlace, RankAdapter, RankDrop, RankLoad, RankWork
from penstock.forward.rank_forward import Followers, GroupEnds, Leader
from penstock.kernels.process_ranks import TIMEOUT_S

L = TypeVar("L")
Key = tuple[str, str]  # name and version
LOOK_S = 0.01  # how long a rank without other work waits before it looks for adapters that are loaded


@dataclass(slots=True)
class _Load(Generic[L]):
    adapter: Adapter
    waits_for: int  # other ranks
    own: L | PenstockError | None = None  # None: this rank has not finished
    finished: float = 0.0  # when it had, by `time.monotonic`
    error: AdapterLoadFailed | None = None  # of another rank


class LeadingLoader(Generic[L]):
    """Implements `adapters.loader.Loader` on rank 0."""

    def __init__(
        self,
        own: Loader[L],
        followers: Followers,
        others: int,
        place_of: Callable[[Adapter], AdapterPlace | None] = lambda _: None,
    ) -> None:
        """`others`: ranks. `place_of`: where `own` puts an adapter whose load it has begun."""
        self._own, self._followers, self._others, self._place_of = own, followers, others, place_of
        self._open: dict[Key, _Load[L]] = {}

    @property
    def pending(self) -> int:
        return len(self._open)

    def start(self, adapter: Adapter) -> bool:
        if not self._own.start(adapter):
            return False
        self._open[adapter.key] = _Load(adapter, self._others)
        self._tell(RankLoad(adapter, self._place_of(adapter)))
        return True

    def release(self, adapter: Adapter, loaded: L) -> None:
        self._own.release(adapter, loaded)
        self._tell(RankDrop(*adapter.key))

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Adapter, L | PenstockError]]:
        own_s = wait_s if self._own.pending else 0.0
        for adapter, made in self._own.take_finished(own_s):
            load = self._open[adapter.key]
            load.own, load.finished = made, time.monotonic()
        for rank, reply in self._followers.receive(wait_s - own_s):
            load = self._open[reply.name, reply.version]
            load.waits_for -= 1
            if reply.error is not None:
                load.error = AdapterLoadFailed(f"{reply.error} (rank {rank})", param="model")
        found = [(load, load.own) for load in self._open.values() if load.own is not None and self._is_complete(load)]
        return [(load.adapter, self._finish(load, own)) for load, own in found]

    def _is_complete(self, load: _Load[L]) -> bool:
        """Ranks load equal shares of the same file: one that takes so much longer than this has stopped."""
        if load.waits_for and time.monotonic() - load.finished > TIMEOUT_S:
            with GroupEnds():
                raise EngineDied(f"a rank has not loaded the adapter {load.adapter.name} in {TIMEOUT_S:.0f} s")
        return not load.waits_for

    def _finish(self, load: _Load[L], own: L | PenstockError) -> L | PenstockError:
        del self._open[load.adapter.key]
        if isinstance(own, PenstockError):
            self._tell(RankDrop(*load.adapter.key))
            return own
        if load.error is not None:
            self.release(load.adapter, own)
            return load.error
        return own

    def _tell(self, message: RankWork) -> None:
        with GroupEnds():
            self._followers.send(message)


class FollowingAdapters(Generic[L]):
    """On any other rank: what rank 0 has told it to load."""

    def __init__(
        self,
        start: Callable[[Adapter, AdapterPlace | None], object],
        take_finished: Callable[[], Sequence[tuple[Adapter, L | PenstockError]]],
    ) -> None:
        """`start` begins to load one, of which `take_finished` gives the rank's share, or what is wrong with it."""
        self._start, self._take_finished = start, take_finished
        self._loaded: dict[Key, L] = {}
        self._loading = 0

    def get(self, adapter: Adapter) -> L:
        return self._loaded[adapter.key]

    def clear(self) -> None:
        """Rank 0 has dropped all of them."""
        assert not self._loading
        self._loaded.clear()

    def work(self, leader: Leader) -> Iterator[RankWork]:
        """What rank 0 asks for beside adapters."""
        while True:
            for message in leader.receive(LOOK_S if self._loading else None):
                match message:
                    case RankLoad():
                        self._start(message.adapter, message.place)
                        self._loading += 1
                    case RankDrop():
                        self._loaded.pop((message.name, message.version), None)
                    case _:
                        yield message
            self._report(leader)

    def _report(self, leader: Leader) -> None:
        for adapter, made in self._take_finished() if self._loading else ():
            self._loading -= 1
            error = made.message if isinstance(made, PenstockError) else None
            if not isinstance(made, PenstockError):
                self._loaded[adapter.key] = made
            leader.send(RankAdapter(adapter.name, adapter.version, error))


def work_of(leader: Leader, adapters: FollowingAdapters[L] | None) -> Iterator[RankWork]:
    """Of a rank with these adapters. None: no step has any."""
    if adapters is not None:
        yield from adapters.work(leader)
    while True:
        yield from leader.receive(None)
