"""`fork_pool.ForkPool` with threads, for processes that Penstock must not fork."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence

from penstock.system.fork_pool import Task

logger = logging.getLogger(__name__)


class ThreadPool:
    """Runs when constructed. `wait`, `stop` or `kill` must follow."""

    def __init__(self, tasks: Sequence[Task], threads: int, *, patience_s: int) -> None:
        self._tasks = deque(tasks)
        self._failed = 0
        self._deadline = time.monotonic() + patience_s
        self._threads = [
            threading.Thread(target=self._run, name="precompile", daemon=True) for _ in range(min(threads, len(tasks)))
        ]
        for thread in self._threads:
            thread.start()

    def wait(self) -> None:
        """Until all tasks are done, or the time for them is up. Their results are files: a caller that misses one makes
        it itself."""
        for thread in self._threads:
            thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._failed or any(thread.is_alive() for thread in self._threads):
            logger.warning("precompiling is incomplete: %d tasks failed", self._failed)
        self._threads.clear()

    def stop(self) -> None:
        """Finish the running tasks and start no further ones."""
        self._tasks.clear()
        self.wait()

    def kill(self) -> None:
        """Start no further tasks. A thread cannot be killed: those that run end with their task."""
        self._tasks.clear()
        self._threads.clear()

    def _run(self) -> None:
        while True:
            try:
                task = self._tasks.popleft()
            except IndexError:
                return
            try:
                task()
            except Exception:
                self._failed += 1
