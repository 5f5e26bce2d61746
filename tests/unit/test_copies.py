"""Copies of the process: they do what there is to do and disturb nobody, whatever happens to them."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from penstock.copies import Copies


def fails() -> None:
    raise ZeroDivisionError


def hangs() -> None:
    threading.Event().wait()


def nobody_is_left(ids: list[int]) -> bool:
    for copy in ids:
        with pytest.raises(ChildProcessError):
            os.waitpid(copy, os.WNOHANG)
    return True


def test_every_task_is_done_once(tmp_path: Path) -> None:
    def task(number: int) -> None:
        with (tmp_path / str(number)).open("x"):  # a second time it would fail
            pass

    copies = Copies([partial(task, number) for number in range(300)], 3, patience_s=60)
    ids = copies.ids.copy()
    assert len(ids) == 3
    copies.wait()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(300))
    assert nobody_is_left(ids)


@pytest.mark.parametrize(("task", "status"), [(fails, 1 << 8), (hangs, int(signal.SIGALRM))])
def test_what_cannot_be_done_holds_nobody_up(
    task: Callable[[], None], status: int, caplog: pytest.LogCaptureFixture
) -> None:
    copies = Copies([task], 1, patience_s=1)
    ids = copies.ids.copy()
    copies.wait()
    assert f"status {status}" in caplog.text
    assert nobody_is_left(ids)


def test_a_task_that_fails_does_not_keep_its_copy_from_the_next(tmp_path: Path) -> None:
    Copies([fails, (tmp_path / "done").touch], 1, patience_s=60).wait()
    assert (tmp_path / "done").exists()


def test_once_stopped_no_task_is_begun(tmp_path: Path) -> None:
    first, later = tmp_path / "first", tmp_path / "later"

    def waits() -> None:
        first.touch()
        while not (tmp_path / "go").exists():
            pass

    copies = Copies([waits, later.touch], 1, patience_s=60)
    while not first.exists():
        pass
    threading.Timer(0.2, (tmp_path / "go").touch).start()
    copies.stop()
    assert not later.exists()


def test_killed_copies_are_gone() -> None:
    copies = Copies([hangs, hangs], 2, patience_s=60)
    ids = copies.ids.copy()
    copies.kill()
    assert len(ids) == 2
    assert nobody_is_left(ids)


def test_copies_hold_no_files_of_the_process_open() -> None:
    watched, held = os.pipe()
    copies = Copies([hangs], 1, patience_s=60)
    try:
        os.close(held)
        assert select.select([watched], [], [], 10)[0]  # the end: nobody has the other side any more
    finally:
        os.close(watched)
        copies.kill()


def test_nothing_of_them_stays_open() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    Copies([int], 1, patience_s=60).wait()
    Copies([int], 1, patience_s=60).stop()
    Copies([hangs], 1, patience_s=60).kill()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


def test_copies_run_no_handlers_of_the_process(tmp_path: Path) -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: (tmp_path / "handled").touch())
    try:
        copies = Copies([hangs], 1, patience_s=60)
        (copy,) = copies.ids
        os.kill(copy, signal.SIGTERM)
        assert os.waitpid(copy, 0) == (copy, signal.SIGTERM)
        copies.wait()  # though somebody else has waited
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "handled").exists()


def test_where_no_process_can_be_made_nothing_is_done(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", refused)
    copies = Copies([fails], 2, patience_s=60)
    assert copies.ids == []
    copies.wait()
    assert "Resource temporarily unavailable" in caplog.text
