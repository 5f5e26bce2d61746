"""Pauses of the collector, and the objects it leaves out."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import tiny_models
from penstock.system import gc_control


def test_it_is_on_again_when_the_last_pause_ends() -> None:
    first, second = gc_control.paused(), gc_control.paused()
    assert gc.isenabled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert not gc.isenabled()
    second.__exit__(None, None, None)
    assert gc.isenabled()


def test_it_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        with gc_control.paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_an_error_ends_a_pause() -> None:
    with pytest.raises(ValueError, match="x"), gc_control.paused():
        raise ValueError("x")
    assert gc.isenabled()


FREED = """
import gc, sys, weakref
from penstock import LLM
from penstock.system.ownership import claim_process

claim_process()

class Local:
    pass

def use():
    local = Local()
    llm = LLM(sys.argv[1], device="cpu")
    return weakref.ref(local), weakref.ref(llm), weakref.ref(llm._driver.engine.loop)

refs = use()
gc.collect()
assert [ref() for ref in refs] == [None] * 3, refs
assert gc.isenabled()
assert gc.get_freeze_count() > 10_000
"""


def test_the_first_engine_of_a_process_can_be_freed(tmp_path: Path) -> None:
    """Imports leave garbage that refers to their callers: it must be gone before the rest is frozen."""
    folder = tiny_models.make("llama", tmp_path / "model")
    subprocess.run([sys.executable, "-c", FREED, str(folder)], check=True)
