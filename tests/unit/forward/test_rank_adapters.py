"""Adapters on several ranks: resident when all have them, on none if one fails, and nobody waits forever."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from penstock.adapters import AdapterCache
from penstock.errors import AdapterLoadFailed, PenstockError
from penstock.flow import Adapter
from penstock.flow.ranks import AdapterPlace, FromRank, RankAdapter, RankDrop, RankLoad, RankLogits, RankWork, ToRank
from penstock.forward import rank_adapters
from penstock.forward.rank_adapters import FollowingAdapters, LeadingLoader, work_of

PLACE = AdapterPlace(3, {0: (16, 4), 2: (0, 9)})


class Weights(NamedTuple):
    num_bytes: int


class ManualLoader:
    """Implements `Loader`: what it loads is there when the test says so."""

    def __init__(self) -> None:
        self.begun: list[Adapter] = []
        self.released: list[str] = []
        self._done: list[tuple[Adapter, Weights | PenstockError]] = []

    @property
    def pending(self) -> int:
        return len(self.begun) + len(self._done)

    def start(self, adapter: Adapter, place: AdapterPlace | None = None) -> bool:
        assert place is None or place == PLACE
        self.begun.append(adapter)
        return adapter.name != "no room"

    def finish(self, error: str = "") -> None:
        """The oldest."""
        made = AdapterLoadFailed(error) if error else Weights(10)
        self._done.append((self.begun.pop(0), made))

    def release(self, adapter: Adapter, loaded: Weights) -> None:
        self.released.append(adapter.name)

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Adapter, Weights | PenstockError]]:
        done, self._done = self._done, []
        return done


def passed(message: Any, kind: Any) -> Any:
    """As the other process has it."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=kind)


class Rank:
    """Another rank, whose process runs when the test asks it to. Implements `Leader` for it."""

    def __init__(self) -> None:
        self.loader = ManualLoader()
        self.adapters = FollowingAdapters(self.loader.start, self.loader.take_finished)
        self.work = work_of(self, self.adapters)
        self.asked: list[RankWork] = []
        self.answers: list[RankAdapter] = []
        self.waits: list[float | None] = []

    def run(self) -> None:
        self.asked.append(RankLogits([0]))
        assert next(self.work) == RankLogits([0])

    def loaded(self, weights_bytes: int) -> None: ...

    def receive(self, timeout_s: float | None) -> Sequence[RankWork]:
        self.waits.append(timeout_s)
        asked, self.asked = self.asked, []
        return asked

    def send(self, message: RankAdapter) -> None:
        self.answers.append(passed(message, FromRank))

    def has(self, adapter: Adapter) -> bool:
        try:
            return self.adapters.get(adapter) == Weights(10)
        except KeyError:
            return False


class Group:
    """Implements `Followers`."""

    def __init__(self, world: int = 3, capacity: int = 25) -> None:
        self.others = [Rank() for _ in range(world - 1)]
        self.own = ManualLoader()
        self.leading = LeadingLoader(self.own, self, world - 1, lambda _: PLACE)
        self.cache = AdapterCache(self.leading, lambda _: 10, capacity)

    def wait_loaded(self) -> int:
        return 0

    def send(self, message: RankWork) -> None:
        for other in self.others:
            other.asked.append(passed(message, ToRank))

    def receive(self, wait_s: float) -> list[tuple[int, RankAdapter]]:
        found = []
        for rank, other in enumerate(self.others, start=1):
            found += [(rank, answer) for answer in other.answers]
            other.answers = []
        return found

    def close(self) -> None: ...

    def run(self) -> None:
        for other in self.others:
            other.run()
            other.run()

    def load(self, adapter: Adapter) -> PenstockError | None:
        """On all ranks at once."""
        assert self.cache.start(adapter)
        self.run()
        for loader in (self.own, *(other.loader for other in self.others)):
            loader.finish()
        self.run()
        [(_, error)] = self.cache.take_finished()
        return error


A, B, C = (Adapter(name, "00", f"/{name}", 1) for name in "abc")


def test_an_adapter_is_resident_when_all_ranks_have_it() -> None:
    group = Group()
    assert group.cache.start(A)
    group.run()
    for loader in (group.others[1].loader, group.own, group.others[0].loader):
        assert not group.cache.take_finished()
        assert not group.cache.is_resident(A)
        loader.finish()
        group.run()
    assert group.cache.take_finished() == [(A, None)]
    assert group.cache.is_resident(A)
    assert group.cache.loading == 0
    assert all(other.has(A) for other in group.others)


def test_those_that_make_room_go_from_all_ranks() -> None:
    group = Group()
    for adapter in (A, B, C, A):
        assert group.load(adapter) is None
        assert all(other.has(adapter) for other in group.others)
    group.run()
    for adapter in (A, B, C):
        resident = group.cache.is_resident(adapter)
        assert [other.has(adapter) for other in group.others] == [resident] * 2
    assert group.own.released == ["a", "b"]
    group.cache.forget("c", "00")
    group.run()
    assert not any(other.has(C) for other in group.others)
    group.cache.clear()
    group.run()
    for other in group.others:
        other.adapters.clear()
        assert not other.has(A)


@pytest.mark.parametrize("failing", [0, 1, 2])
def test_if_one_rank_fails_none_keeps_it(failing: int) -> None:
    group = Group()
    assert group.cache.start(A)
    group.run()
    for rank, loader in enumerate((group.own, *(other.loader for other in group.others))):
        loader.finish("a is truncated" if rank == failing else "")
    group.run()
    [(_, error)] = group.cache.take_finished()
    assert isinstance(error, AdapterLoadFailed)
    assert error.message == ("a is truncated" if failing == 0 else f"a is truncated (rank {failing})")
    group.run()
    assert not any(other.has(A) for other in group.others)
    assert group.own.released == ([] if failing == 0 else ["a"])
    assert group.load(A) is None  # it may be tried again


def test_ranks_are_not_told_of_what_has_no_place() -> None:
    group = Group()
    assert not group.cache.start(Adapter("no room", "00", "/", 1))
    assert not any(other.asked for other in group.others)


def test_a_rank_looks_for_what_it_has_loaded_only_while_it_loads() -> None:
    group = Group(world=2)
    (other,) = group.others
    group.run()
    assert group.cache.start(A)
    group.run()
    other.loader.finish()
    group.run()
    assert other.waits[0] is None
    assert other.waits[-1] is None
    assert rank_adapters.LOOK_S in other.waits


def test_a_rank_that_does_not_load_ends_the_group(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once rank 0 has its own share: a slow disk keeps all of them waiting."""
    now = [0.0]
    monkeypatch.setattr(rank_adapters.time, "monotonic", lambda: now[0])
    group = Group(world=2)
    assert group.cache.start(A)
    now[0] = 1000.0
    assert not group.cache.take_finished()
    group.own.finish()
    assert not group.cache.take_finished()
    now[0] += rank_adapters.TIMEOUT_S + 1
    with pytest.raises(SystemExit):
        group.cache.take_finished()


def test_a_rank_that_is_gone_ends_the_group() -> None:
    group = Group()

    def gone(message: RankWork) -> None:
        raise BrokenPipeError

    group.send = gone  # type: ignore[method-assign]
    with pytest.raises(SystemExit):
        group.cache.start(A)


def test_what_rank_0_asks_for_stays_in_order() -> None:
    """Steps before an adapter is dropped still have it."""
    rank = Rank()
    rank.asked += [RankLoad(A, PLACE), RankLogits([1])]
    assert next(rank.work) == RankLogits([1])
    rank.loader.finish()
    rank.asked += [RankLogits([2])]
    assert next(rank.work) == RankLogits([2])
    rank.asked += [RankLogits([3]), RankDrop(*A.key), RankLogits([4])]
    assert next(rank.work) == RankLogits([3])
    assert rank.has(A)
    assert next(rank.work) == RankLogits([4])
    assert not rank.has(A)
