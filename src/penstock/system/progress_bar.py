"""Progress of a long batch on standard error: a bar on a terminal, a line every ten seconds elsewhere.

Written without a library for it: those replace sys.stdout while they draw, or draw from `random`, both of which belong
to the program that uses `LLM`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

LONG_BATCH = 8  # items from which on progress is shown by default
LINE_EVERY_S = 10.0  # where standard error is not a terminal; a batch that is done sooner prints nothing
DRAW_EVERY_S = 0.1
WIDTH = 32  # characters of the bar
ERASE_LINE = "\r\x1b[2K"


@contextmanager
def bar(doing: str, total: int, *, enabled: bool | None) -> Iterator[Callable[[], None]]:
    """Gives the function to call after each item. `enabled` None: for long batches only."""
    if not (total >= LONG_BATCH if enabled is None else enabled) or sys.stderr is None:
        yield lambda: None
        return
    done, finished, start, stream = 0, threading.Event(), time.monotonic(), sys.stderr
    on_terminal = stream.isatty()

    def draw() -> None:
        _write(stream, ERASE_LINE + drawing(doing, done, total, time.monotonic() - start))

    def report() -> None:
        """In a thread: a batch whose first item takes minutes is not silent until then."""
        while not finished.wait(DRAW_EVERY_S if on_terminal else LINE_EVERY_S):
            if on_terminal:
                draw()
            else:
                _write(stream, line(doing, done, total, time.monotonic() - start) + "\n")

    def advance() -> None:
        nonlocal done
        done += 1

    thread = threading.Thread(target=report, name="progress", daemon=True)
    thread.start()
    try:
        yield advance
    finally:
        finished.set()
        thread.join()
        if on_terminal:
            draw()
            _write(stream, ERASE_LINE)


def line(doing: str, done: int, total: int, elapsed_s: float) -> str:
    return f"{doing}: {done} of {total} after {elapsed_s:.0f} s{_remaining(done, total, elapsed_s)}"


def drawing(doing: str, done: int, total: int, elapsed_s: float) -> str:
    filled = WIDTH * done // max(total, 1)
    return f"{doing} {'━' * filled}{'╌' * (WIDTH - filled)} {done}/{total}{_remaining(done, total, elapsed_s)}"


def _remaining(done: int, total: int, elapsed_s: float) -> str:
    return f", about {elapsed_s * (total - done) / done:.0f} s left" if done else ""


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text)
        stream.flush()
    except (OSError, ValueError):  # closed, or an encoding without the bar's characters: the batch goes on
        return
