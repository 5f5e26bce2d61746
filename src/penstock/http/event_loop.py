"""The event loop of a process that serves HTTP."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

# Switch interval of the interpreter. The event loop waits for it each time it has released the interpreter: dozens of
# times a turn. With 1 ms, a thread that parses a long body stalls it for 80 ms (bench/stalls.py).
THREAD_TURN_S = 0.0002


def prefer_event_loop() -> None:
    """Threads hold the interpreter for short turns only."""
    sys.setswitchinterval(THREAD_TURN_S)


def run_loop(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:  # not on every platform
        return asyncio.run(main)
    return uvloop.run(main)
