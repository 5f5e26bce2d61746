"""The other ranks of an engine: what keeps one from loading is told, and they join the group together."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock import settings
from penstock.engine import rank_worker
from penstock.engine.ipc import PeerGone
from penstock.engine.rank_group import RankGroup
from penstock.errors import EngineDied, ModelNotFound
from penstock.flow.ranks import RankJoin, RankLoaded, RankLogits, RankStart
from penstock.forward.rank_forward import Leader


def test_what_keeps_a_rank_from_loading_is_told(tmp_path: Path) -> None:
    values = {"model": str(tmp_path / "nowhere"), "device": "cpu", "tensor_parallel": 2}
    group = RankGroup(settings.load(values, environ={}), 2)
    with pytest.raises(ModelNotFound, match="nowhere"):
        group.wait_loaded()
    group.close()
    assert not group.folder.exists()


def test_a_rank_that_dies_before_it_has_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    group = RankGroup(settings.load({"tensor_parallel": 2}, environ={}), 2)
    with pytest.raises(EngineDied, match=r"rank 1 died \(exit code 1\)"):
        group.wait_loaded()
    group.close()


class LoadedRank:
    """In place of a `RankProcess`, and its link."""

    def __init__(self, rank: int, done: list[str]) -> None:
        self._rank, self._done, self.link = rank, done, self
        self.lifeline, self._write_end = os.pipe()

    def wait_loaded(self) -> int:
        self._done.append(f"{self._rank} has loaded")
        return 10

    def send(self, message: object) -> None:
        assert isinstance(message, RankJoin)
        self._done.append(f"{self._rank} may join")

    def close(self) -> None:
        os.close(self.lifeline)
        os.close(self._write_end)


def test_none_joins_before_all_have_loaded() -> None:
    """In the group they wait for each other no longer than for a sum."""
    group, done = RankGroup(settings.load({}, environ={}), 1), list[str]()
    group._others += [LoadedRank(1, done), LoadedRank(2, done)]  # type: ignore[list-item]
    assert group.wait_loaded() == 20
    assert done == ["1 has loaded", "2 has loaded", "1 may join", "2 may join"]
    group.close()


def test_a_rank_waits_until_it_may_join(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    incoming = [RankStart({}, 1, "folder"), RankJoin(), RankLogits([3])]

    class Link:
        lifeline = -1
        send = staticmethod(sent.append)

        @staticmethod
        def receive(timeout_s: float | None) -> list[Any]:
            if not incoming:
                raise PeerGone
            return [incoming.pop(0)]

    def follow(_: object, rank: int, meeting: str, leader: Leader) -> None:
        assert (rank, meeting) == (1, "folder")
        leader.loaded(7)
        assert sent == [RankLoaded(7)]
        assert incoming == [RankLogits([3])]  # it was told to join
        assert leader.receive(None) == [RankLogits([3])]
        leader.receive(None)

    monkeypatch.setattr(rank_worker.composition, "follow_rank_0", follow)
    monkeypatch.setattr(rank_worker, "from_wire", lambda _: settings.load({}, environ={}))
    monkeypatch.setattr(rank_worker, "configure", lambda _: None)
    with pytest.raises(PeerGone):
        rank_worker.work(Link())  # type: ignore[arg-type]


def test_nothing_is_left_of_a_group_that_nobody_closed() -> None:
    """As where an engine ends: its other ranks end with it."""
    group = RankGroup(settings.load({}, environ={}), 1)
    folder = group.folder
    assert folder.exists()
    del group
    gc.collect()
    assert not folder.exists()
