"""`LLM` inside another program: it leaves the process as it found it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import penstock
from helpers import embedding_program as program


@pytest.fixture(scope="module")
def changes(tiny: Path) -> Any:
    """Of one fresh interpreter, for all ways: importing torch takes seconds."""
    paths = [str(Path(penstock.__file__).parents[1]), str(Path(__file__).parents[1])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", program.__name__, str(tiny)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    "way", ["isolated", "in_process", "with_torch", "two_at_once", "in_a_thread", "in_an_event_loop"]
)
def test_an_engine_changes_nothing_global(way: str, changes: Any) -> None:
    assert changes[way] == []


def test_the_callers_process_is_not_forked(changes: Any) -> None:
    assert "fork" not in changes
