"""Ctrl-C, kept from taking effect where it would leave half of something done."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

INSISTS_S = 1.0  # some send the same interrupt twice, to a process and to its group: whoever insists takes longer


@contextmanager
def held() -> Iterator[None]:
    """An interrupt (SIGINT) within this takes effect at its end, at the outermost one if nested; another one that comes
    later than `INSISTS_S` after it does at once, or at the end of the innermost. Only the main thread is ever
    interrupted, and only if a function handles the signal, as that does which raises KeyboardInterrupt."""
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
