"""Raises SIGINT at a chosen line of the code under test."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from functools import cache
from linecache import getline
from types import FrameType
from typing import Any


def interrupt_at_line(
    work: Callable[[], object], files: tuple[str, ...], at: int, *, skipped: tuple[str, ...] = ()
) -> bool:
    """Run `work` and raise SIGINT at its `at`-th executed line in `files`; False if it executes fewer lines.

    Lines that start with one of `skipped` do not count."""
    lines = 0

    def trace_calls(frame: FrameType, event: str, _: Any) -> Any:
        return trace_lines if lines < at and _is_one_of(frame.f_code.co_filename, files) else None

    def trace_lines(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal lines
        if event == "line" and not (skipped and _starts_with(frame.f_code.co_filename, frame.f_lineno, skipped)):
            lines += 1
            if lines == at:
                sys.settrace(None)  # the rest is not counted
                signal.raise_signal(signal.SIGINT)
        return trace_lines

    before = sys.gettrace()
    sys.settrace(trace_calls)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


@cache
def _is_one_of(name: str, files: tuple[str, ...]) -> bool:
    return any(file in name for file in files)


@cache
def _starts_with(name: str, number: int, beginnings: tuple[str, ...]) -> bool:
    return getline(name, number).lstrip().startswith(beginnings)
