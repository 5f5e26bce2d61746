"""The pool of threads: every task once, and no failure that holds the caller up."""

from __future__ import annotations

import threading

import pytest

from penstock.system.thread_pool import ThreadPool


def fails() -> None:
    raise ZeroDivisionError


def test_every_task_is_done_once() -> None:
    done: list[int] = []
    ThreadPool([lambda number=number: done.append(number) for number in range(300)], 3, patience_s=60).wait()
    assert sorted(done) == list(range(300))


def test_a_task_that_fails_does_not_keep_its_thread_from_the_next(caplog: pytest.LogCaptureFixture) -> None:
    done = threading.Event()
    ThreadPool([fails, done.set], 1, patience_s=60).wait()
    assert done.is_set()
    assert "1 tasks failed" in caplog.text


@pytest.mark.parametrize("end", [ThreadPool.stop, ThreadPool.kill])
def test_once_ended_no_task_is_begun(end: object, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go, later = threading.Event(), threading.Event(), threading.Event()

    def waits() -> None:
        begun.set()
        go.wait()

    pool = ThreadPool([waits, later.set], 1, patience_s=60)
    (thread,) = pool._threads
    begun.wait()
    ending = threading.Thread(target=end, args=(pool,))  # type: ignore[arg-type]
    ending.start()
    while pool._tasks:
        pass
    go.set()
    ending.join()
    thread.join()
    assert not later.is_set()


def test_what_hangs_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()
    pool = ThreadPool([go.wait], 1, patience_s=0)
    (thread,) = pool._threads
    pool.wait()
    assert "incomplete" in caplog.text
    go.set()
    thread.join()
