"""How far a long batch is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

LONG_BATCH = 8  # from here on progress is shown unasked
LINE_EVERY_S = 10.0  # where standard error is no terminal; a batch that is done sooner says nothing


@contextmanager
def bar(doing: str, total: int, *, wanted: bool | None) -> Iterator[Callable[[], None]]:
    """Gives what to call for each item that is done. `wanted` None: if it is a long batch."""
    if not (total >= LONG_BATCH if wanted is None else wanted):
        yield lambda: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        with _lines(doing, total) as advance:
            yield advance
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(doing), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(doing, total=total)
        yield lambda: progress.advance(task)


@contextmanager
def _lines(doing: str, total: int) -> Iterator[Callable[[], None]]:
    """By a thread, so that a batch whose first item takes minutes is not silent until then."""
    done, over, begun = 0, threading.Event(), time.monotonic()

    def report() -> None:
        while not over.wait(LINE_EVERY_S):
            sys.stderr.write(line(doing, done, total, time.monotonic() - begun) + "\n")
            sys.stderr.flush()

    def advance() -> None:
        nonlocal done
        done += 1

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        over.set()
        thread.join()


def line(doing: str, done: int, total: int, seconds: float) -> str:
    left = f", about {seconds * (total - done) / done:.0f} s left" if done else ""
    return f"{doing}: {done} of {total} after {seconds:.0f} s{left}"
