"""When steps are measured, and when an earlier measurement is good enough."""

from __future__ import annotations

import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.forward import step_costs as module
from penstock.forward.step_costs import GOOD_FOR_S, step_costs


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[int]:
    """Rows of all steps that `costs` launches."""
    monkeypatch.setattr(module, "cache_root", lambda: tmp_path)
    return []


def costs(launched: list[int], *what: object) -> dict[int, float]:
    backend: Any = SimpleNamespace(launch=lambda plan: launched.append(len(plan.rows)), collect=lambda: None)
    return dict(step_costs(backend, what, max_rows=4, num_groups=1).measured)


def test_steps_are_measured_once_for_all_that_they_depend_on(launched: list[int]) -> None:
    measured = costs(launched, "model", 1)
    assert sorted(measured) == [1, 2, 3, 4]
    count = len(launched)
    assert count > 4
    assert costs(launched, "model", 1) == measured
    assert len(launched) == count, "read from the file"
    costs(launched, "model", 2)
    assert len(launched) == 2 * count


def test_an_old_measurement_is_made_again(launched: list[int], tmp_path: Path) -> None:
    costs(launched, "model")
    count = len(launched)
    (file,) = (tmp_path / module.FOLDER).iterdir()
    past = time.time() - GOOD_FOR_S - 60
    os.utime(file, (past, past))
    costs(launched, "model")
    assert len(launched) > count
