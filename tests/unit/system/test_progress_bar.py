"""How far a batch is, where nobody sees a bar."""

from __future__ import annotations

import pytest

from helpers.server_process import until
from penstock.system import progress_bar as module
from penstock.system.progress_bar import LONG_BATCH, bar, line


def test_where_there_is_no_terminal_a_long_batch_writes_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "LINE_EVERY_S", 0.001)
    said = ""

    def told(text: str) -> bool:
        nonlocal said
        said += capsys.readouterr().err
        return text in said

    with bar("generating", LONG_BATCH, wanted=None) as advance:
        until(lambda: told("generating: 0 of 8 after 0 s\n"), "a line before anything is done")
        advance()
        until(lambda: told("generating: 1 of 8 after"), "a line that counts")
    capsys.readouterr()
    assert not told("generating: 2")


@pytest.mark.parametrize(("total", "wanted"), [(LONG_BATCH - 1, None), (LONG_BATCH, False)])
def test_short_batches_and_unwanted_lines_are_silent(
    total: int, wanted: bool | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def no_thread(*_: object, **__: object) -> None:
        raise AssertionError("nobody is to write lines")

    monkeypatch.setattr(module.threading, "Thread", no_thread)
    with bar("generating", total, wanted=wanted) as advance:
        advance()
    assert capsys.readouterr() == ("", "")


def test_what_a_line_says() -> None:
    assert line("embedding", 0, 100, 10.2) == "embedding: 0 of 100 after 10 s"
    assert line("embedding", 25, 100, 10.0) == "embedding: 25 of 100 after 10 s, about 30 s left"
