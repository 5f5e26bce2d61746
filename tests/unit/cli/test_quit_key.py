"""q in a terminal that is one for the process, and none for anybody else."""

from __future__ import annotations

import os
import pty
import sys
import termios
import time
from collections.abc import Iterator
from io import StringIO

import pytest

from helpers.server_process import PATIENCE_S
from penstock.cli.quit_key import quitting_on_q


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[int, int]]:
    """Its two ends: the one a person types into, and the one the program reads."""
    person, program = pty.openpty()
    with os.fdopen(os.dup(program)) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        yield person, program
    os.close(person)
    os.close(program)


@pytest.mark.parametrize("key", [b"q", b"Q", b"x7q"])
def test_q_ends_what_waits(terminal: tuple[int, int], key: bytes) -> None:
    person, program = terminal
    before = termios.tcgetattr(program)
    with quitting_on_q():
        os.write(person, key)
        for _ in range(round(PATIENCE_S / 0.01)):
            time.sleep(0.01)
        raise AssertionError("q has not been noticed")
    assert termios.tcgetattr(program) == before


def test_the_terminal_is_as_before_and_an_interrupt_is_one(terminal: tuple[int, int]) -> None:
    _, program = terminal
    before = termios.tcgetattr(program)
    with quitting_on_q():
        assert not termios.tcgetattr(program)[3] & termios.ECHO
    assert termios.tcgetattr(program) == before
    with pytest.raises(KeyboardInterrupt), quitting_on_q():
        raise KeyboardInterrupt
    assert termios.tcgetattr(program) == before


@pytest.mark.parametrize("stdin", [None, StringIO("q")])
def test_without_a_terminal_nothing_is_read(stdin: StringIO | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", stdin)
    with quitting_on_q():
        pass
