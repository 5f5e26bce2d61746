"""ForkPool of the process: they do what there is to do and disturb nobody, whatever happens to them."""

from __future__ import annotations

import fcntl
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from helpers.server_process import PATIENCE_S
from penstock.system import fork_pool as module
from penstock.system.fork_pool import ForkPool

# Python 3.12 warns of any thread, and a process that runs some of the test files has one of its own.
pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork:DeprecationWarning")


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

    copies = ForkPool([partial(task, number) for number in range(300)], 3, patience_s=60)
    ids = copies.ids.copy()
    assert len(ids) == 3
    copies.wait()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(300))
    assert nobody_is_left(ids)


@pytest.mark.parametrize(
    ("task", "patience_s", "status"), [(fails, 60, 1 << 8), (hangs, 1, int(signal.SIGALRM))], ids=["fails", "hangs"]
)
def test_what_cannot_be_done_holds_nobody_up(
    task: Callable[[], None], patience_s: int, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    copies = ForkPool([task], 1, patience_s=patience_s)
    ids = copies.ids.copy()
    copies.wait()
    assert f"status {status}" in caplog.text
    assert nobody_is_left(ids)


def test_a_task_that_fails_does_not_keep_its_copy_from_the_next(tmp_path: Path) -> None:
    ForkPool([fails, (tmp_path / "done").touch], 1, patience_s=60).wait()
    assert (tmp_path / "done").exists()


def test_once_stopped_no_task_is_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first task ends when `stop` has taken the others back and waits for the copy."""
    status = module._status
    first, later = tmp_path / "first", tmp_path / "later"

    def waits() -> None:
        first.touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    copies = ForkPool([waits, later.touch], 1, patience_s=60)
    while not first.exists():
        time.sleep(0.01)

    def status_of(copy: int) -> int:
        (tmp_path / "go").touch()
        return status(copy)

    monkeypatch.setattr(module, "_status", status_of)
    copies.stop()
    assert not later.exists()


def test_killed_copies_are_gone() -> None:
    copies = ForkPool([hangs, hangs], 2, patience_s=60)
    ids = copies.ids.copy()
    copies.kill()
    assert len(ids) == 2
    assert nobody_is_left(ids)


def test_copies_hold_no_files_of_the_process_open() -> None:
    watched, held = os.pipe()
    copies = ForkPool([hangs], 1, patience_s=60)
    try:
        os.close(held)
        assert select.select([watched], [], [], PATIENCE_S)[0]  # the end: nobody has the other side any more
    finally:
        os.close(watched)
        copies.kill()


def test_nothing_of_them_stays_open() -> None:
    before = sorted(Path("/proc/self/fd").iterdir())
    ForkPool([int], 1, patience_s=60).wait()
    ForkPool([int], 1, patience_s=60).stop()
    ForkPool([hangs], 1, patience_s=60).kill()
    assert sorted(Path("/proc/self/fd").iterdir()) == before


@pytest.mark.parametrize("ignored", [False, True])
def test_copies_run_no_handlers_of_the_process(ignored: bool, tmp_path: Path) -> None:
    def handle(*_: object) -> None:
        (tmp_path / "handled").touch()

    before = signal.signal(signal.SIGTERM, signal.SIG_IGN if ignored else handle)
    try:
        copies = ForkPool([hangs], 1, patience_s=60)
        (copy,) = copies.ids
        os.kill(copy, signal.SIGTERM)
        assert os.waitpid(copy, 0) == (copy, signal.SIGTERM)
        copies.wait()  # though somebody else has waited
    finally:
        signal.signal(signal.SIGTERM, before)
    assert not (tmp_path / "handled").exists()


@pytest.mark.parametrize("missing", ["fork", "pipe"])
@pytest.mark.parametrize("end", [ForkPool.wait, ForkPool.stop, ForkPool.kill])
def test_where_no_process_can_be_made_nothing_is_done(
    missing: str, end: Callable[[ForkPool], None], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refused() -> int:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(os, missing, refused)
    copies = ForkPool([fails], 2, patience_s=60)
    assert copies.ids == []
    end(copies)
    assert "Resource temporarily unavailable" in caplog.text


def test_a_small_pipe_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of an ordinary user who has many pipes already."""
    make = os.pipe

    def small() -> tuple[int, int]:
        read, write = make()
        fcntl.fcntl(write, fcntl.F_SETPIPE_SZ, 4096)
        return read, write

    monkeypatch.setattr(os, "pipe", small)
    ForkPool([partial(Path.touch, tmp_path / str(number)) for number in range(3000)], 2, patience_s=60).wait()
    assert sorted(int(path.name) for path in tmp_path.iterdir()) == list(range(2048))


def test_an_interrupt_while_copies_are_made_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    fork = os.fork

    def struck() -> int:
        made.append(fork())
        if len(made) == 2 and made[-1] != 0:
            signal.raise_signal(signal.SIGINT)  # blocked until the copy is known
        return made[-1]

    files = sorted(Path("/proc/self/fd").iterdir())
    monkeypatch.setattr(os, "fork", struck)
    with pytest.raises(KeyboardInterrupt):
        ForkPool([hangs] * 3, 3, patience_s=60)
    assert len(made) == 2
    assert nobody_is_left(made)
    assert sorted(Path("/proc/self/fd").iterdir()) == files


def test_copies_do_not_outlive_the_process_by_more_than_a_task(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def waits() -> None:
        while not go.exists():
            time.sleep(0.01)

    parent = os.fork()
    if parent == 0:
        copies = ForkPool([waits, (tmp_path / "later").touch], 1, patience_s=60)
        (tmp_path / "copy").write_text(str(copies.ids[0]))
        os._exit(0)
    os.waitpid(parent, 0)
    copy = int((tmp_path / "copy").read_text())
    go.touch()
    while Path(f"/proc/{copy}/stat").exists() and " Z " not in Path(f"/proc/{copy}/stat").read_text():
        time.sleep(0.01)
    assert not (tmp_path / "later").exists()
