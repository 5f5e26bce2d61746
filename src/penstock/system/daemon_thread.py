"""Blocking calls beside an event loop that the process need not wait for when it ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def run_in_daemon_thread(call: Callable[[], T], name: str) -> asyncio.Future[T]:
    """As `asyncio.to_thread`, but the loop and the process may end before `call` returns."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
        if not future.cancelled():
            set_outcome(outcome)

    def run() -> None:
        set_outcome: Callable[[Any], None]
        outcome: T | BaseException
        try:
            outcome, set_outcome = call(), future.set_result
        except BaseException as error:
            outcome, set_outcome = error, future.set_exception
        with suppress(RuntimeError):  # the loop has been closed
            loop.call_soon_threadsafe(settle, set_outcome, outcome)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
