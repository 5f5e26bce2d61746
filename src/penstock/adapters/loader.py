"""A thread that loads adapters, one after the other, at a lower priority than the steps beside it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Generic, Protocol, TypeVar

from penstock.errors import AdapterLoadFailed, PenstockError
from penstock.flow import Adapter

L = TypeVar("L")

# Steps go first where there is no core to spare. Not lower: a thread that other processes keep from running may hold
# the interpreter's lock, and steps would wait for it.
NICENESS = 5


class Loader(Protocol[L]):
    """How adapters get to where steps read them."""

    @property
    def pending(self) -> int:
        """Loads that `take_finished` has not reported."""

    def start(self, adapter: Adapter) -> bool:
        """False: there is no place for it, which the adapters in memory leave in pieces."""

    def release(self, adapter: Adapter, loaded: L) -> None:
        """It is not read any more, by steps that are launched from now on."""

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Adapter, L | PenstockError]]:
        """Those loaded or failed since the last call. Waits up to `wait_s` for the first."""


class AdapterLoader(Generic[L]):
    """Implements `Loader`. Call all methods from one thread; `load` runs in another."""

    def __init__(self, load: Callable[[Adapter], L]) -> None:
        self._load = load
        self._thread: threading.Thread | None = None
        self._queue: SimpleQueue[Adapter] = SimpleQueue()
        self._results: SimpleQueue[tuple[Adapter, L | PenstockError]] = SimpleQueue()
        self.pending = 0

    def start(self, adapter: Adapter) -> bool:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="adapters", daemon=True)
            self._thread.start()
        self.pending += 1
        self._queue.put(adapter)
        return True

    def release(self, adapter: Adapter, loaded: L) -> None:
        """What it owns goes with it."""

    def take_finished(self, wait_s: float = 0.0) -> list[tuple[Adapter, L | PenstockError]]:
        found: list[tuple[Adapter, L | PenstockError]] = []
        while self.pending:
            try:
                found.append(self._results.get(timeout=wait_s) if wait_s else self._results.get_nowait())
            except Empty:
                break
            self.pending -= 1
            wait_s = 0.0
        return found

    def _run(self) -> None:
        _lower_priority()
        while True:
            adapter = self._queue.get()
            try:
                self._results.put((adapter, self._load(adapter)))
            except PenstockError as error:
                self._results.put((adapter, AdapterLoadFailed(_without_path(error.message, adapter), param="model")))
            except Exception as error:  # its sequences wait for an answer
                message = f"loading the adapter {adapter.name} failed: {type(error).__name__}: {error}"
                self._results.put((adapter, AdapterLoadFailed(message, param="model")))


def _without_path(message: str, adapter: Adapter) -> str:
    """Clients need not know where it lies."""
    text = message.replace(f"{adapter.path}/", "").replace(adapter.path, Path(adapter.path).name)
    return text if text.startswith("adapter ") else f"adapter {adapter.name}: {text}"


def _lower_priority() -> None:
    """Of the calling thread. Elsewhere than on Linux threads have none of their own."""
    if sys.platform == "linux":
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
