"""A pool of forked processes for small tasks; each process takes the next task when it is free.

For work that holds the interpreter lock, where threads would block each other and the caller, and fresh interpreters
would have to import everything first. A forked process has all imported modules but only the thread that forked it, and
returns nothing: its tasks write files. If it waits for a lock that a lost thread held, its alarm ends it.
"""

from __future__ import annotations

import logging
import os
import signal
import struct
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

logger = logging.getLogger(__name__)

Task = Callable[[], object]

INDEX = struct.Struct("=H")  # of a task
MAX_TASKS = 1 << 16


class ForkPool:
    """Runs when constructed. `wait`, `stop` or `kill` must follow; when one returns, no process is left."""

    def __init__(self, tasks: Sequence[Task], processes: int, *, patience_s: int) -> None:
        self.ids: list[int] = []
        self._queue = -1
        try:
            tasks = tasks[: self._enqueue(min(len(tasks), MAX_TASKS))]
            for _ in range(min(processes, len(tasks))):
                self._fork(tasks, patience_s)
        except OSError as error:
            logger.warning("only %d helper processes: another could not be started: %s", len(self.ids), error)
        except BaseException:
            self.kill()
            raise

    def _enqueue(self, count: int) -> int:
        """Task indices queue in a pipe; idle processes read the next. Gives how many fit the pipe."""
        self._queue, feed = os.pipe()
        try:
            os.set_blocking(feed, False)
            return os.write(feed, b"".join(map(INDEX.pack, range(count)))) // INDEX.size
        finally:
            os.close(feed)

    def wait(self) -> None:
        """Until all tasks are done. Their results are files: a caller that misses one makes it itself."""
        while self.ids:
            if status := _status(self.ids[-1]):
                logger.warning("precompiling is incomplete: a helper process ended with status %d", status)
            self.ids.pop()
        self._close()

    def stop(self) -> None:
        """Finish the running tasks and start no further ones."""
        while self._queue != -1 and os.read(self._queue, 1 << 16):
            pass
        self.wait()

    def kill(self) -> None:
        for child in self.ids:
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            _status(child)
        self.ids.clear()
        self._close()

    def _close(self) -> None:
        queue, self._queue = self._queue, -1
        if queue != -1:
            os.close(queue)

    def _fork(self, tasks: Sequence[Task], patience_s: int) -> None:
        parent, blocked = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # about forks of a process with threads
                child = os.fork()
            if child == 0:
                _run(tasks, self._queue, parent, patience_s)
            self.ids.append(child)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _status(child: int) -> int:
    """Wait for the process to end; gives its wait status."""
    try:
        return os.waitpid(child, 0)[1]
    except ChildProcessError:  # other code of this process has waited for it
        return 0


def _run(tasks: Sequence[Task], queue: int, parent: int, patience_s: int) -> NoReturn:
    """The forked process: does not outlive its parent by more than one task."""
    failed = 1
    try:
        _detach(queue)
        signal.alarm(patience_s)
        failed = 0
        while os.getppid() == parent and (index := os.read(queue, INDEX.size)):
            failed += 1
            with suppress(Exception):
                tasks[INDEX.unpack(index)[0]]()
                failed -= 1
    finally:
        os._exit(failed > 0)


def _detach(queue: int) -> None:
    """Restore the default signal handlers and close all files but the standard ones and `queue`: peers of the parent
    must not take this process for it."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) > 2 and int(entry.name) != queue:
            with suppress(OSError):  # the listing's own descriptor
                os.close(int(entry.name))
