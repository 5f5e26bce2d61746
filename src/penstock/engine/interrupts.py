"""Ctrl-C, kept from taking effect where it would leave half of something done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def held() -> Iterator[None]:
    """An interrupt within this takes effect at its end; a second one does at once. Only the main thread is ever
    interrupted, and only by handlers that are written in Python, as that of KeyboardInterrupt is."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield
        return
    first: list[FrameType | None] = []

    def hold(number: int, frame: FrameType | None) -> None:
        if first:
            handler(number, frame)
        first.append(frame)

    signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if first:
            handler(signal.SIGINT, first[0])
