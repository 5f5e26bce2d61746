"""Ctrl-C, deferred where it would leave work half done."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INSISTS_S = 1.0  # some tools signal a process and its group: a second interrupt counts only after this long


@contextmanager
def held() -> Iterator[None]:
    """An interrupt (SIGINT) inside the block takes effect at its end, or at the end of the outermost block if nested; a
    second one more than `INSISTS_S` later takes effect at once, or at the end of the innermost block. Only the main
    thread is interrupted, and only if a function handles the signal, such as Python's own. The handler is restored at
    the end."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    first: tuple[float, FrameType | None] | None = None

    def hold(number: int, frame: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic(), frame
        elif time.monotonic() - first[0] > INSISTS_S:
            handler(number, frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if first is not None:
            handler(signal.SIGINT, first[1])
