"""The other ranks of an engine: what keeps one from loading is told."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from penstock import settings
from penstock.engine.rank_group import RankGroup
from penstock.errors import EngineDied, ModelNotFound


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
