"""Raises SIGINT at a chosen line of the code under test."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from linecache import getline
from types import FrameType
from typing import Any


def interrupt_at_line(
    work: Callable[[], object], files: tuple[str, ...], at: int, *, skipped: tuple[str, ...] = ()
) -> bool:
    """Run `work` and raise SIGINT at its `at`-th executed line in `files`; False if it executes fewer lines.

    Lines that start with one of `skipped` do not count."""
    lines = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        name = frame.f_code.co_filename
        if not any(file in name for file in files):
            return None
        if event == "line" and not (skipped and getline(name, frame.f_lineno).lstrip().startswith(skipped)):
            lines += 1
            if lines == at:
                signal.raise_signal(signal.SIGINT)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False
