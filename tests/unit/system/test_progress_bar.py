"""Progress of a batch, on a terminal and elsewhere."""

from __future__ import annotations

import io
import random
import sys
import threading

import pytest

from helpers.server_process import PATIENCE_S, until
from penstock.system import progress_bar as module
from penstock.system.progress_bar import LONG_BATCH, bar, drawing, line


def test_where_there_is_no_terminal_a_long_batch_writes_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.001)
    said = ""

    def told(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return text in said

    with bar("generating", LONG_BATCH, enabled=None) as advance:
        until(lambda: told("generating: 0 of 8 after 0 s\n"), "a line before anything is done")
        advance()
        until(lambda: told("generating: 1 of 8 after"), "a line that counts")
    capsys.readouterr()
    assert not told("generating: 2")


@pytest.mark.parametrize(("total", "enabled"), [(LONG_BATCH - 1, None), (LONG_BATCH, False)])
def test_short_batches_and_unwanted_lines_are_silent(
    total: int, enabled: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_thread(*_: object, **__: object) -> None:
        raise AssertionError("nobody is to write lines")

    monkeypatch.setattr(module.threading, "Thread", no_thread)
    with bar("generating", total, enabled=enabled) as advance:
        advance()
    assert capsys.readouterr() == ("", "")


def test_what_a_line_says() -> None:
    assert line("embedding", 0, 100, 10.2) == "embedding: 0 of 100 after 10 s"
    assert line("embedding", 25, 100, 10.0) == "embedding: 25 of 100 after 10 s, about 30 s left"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_a_bar_is_drawn_and_erased(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "DRAW_EVERY_S", 0.001)
    streams, state = (sys.stdout, sys.stderr), random.getstate()
    with bar("generating", 2, enabled=True) as advance:
        advance()
        until(lambda: " 1/2, about 0 s left" in terminal.getvalue(), "a bar")
        assert (sys.stdout, sys.stderr) == streams
    assert terminal.getvalue().endswith(module.ERASE_LINE)
    assert random.getstate() == state


def test_what_a_bar_shows() -> None:
    assert drawing("embedding", 0, 4, 1.0) == f"embedding {'╌' * 32} 0/4"
    assert drawing("embedding", 1, 4, 5.0) == f"embedding {'━' * 8}{'╌' * 24} 1/4, about 15 s left"


@pytest.mark.parametrize("error", [OSError("gone"), UnicodeEncodeError("ascii", "━", 0, 1, "no such character")])
def test_an_output_that_fails_does_not_fail_the_batch(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    wrote = threading.Event()

    def write(text: str) -> int:
        wrote.set()
        raise error

    terminal = Terminal()
    monkeypatch.setattr(terminal, "write", write)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setattr(module, "DRAW_EVERY_S", 0.001)
    with bar("generating", 2, enabled=True) as advance:
        assert wrote.wait(PATIENCE_S)
        advance()
