"""Copies of this process that do small tasks for it, each taking the next one when it is free.

For work that needs the interpreter, where threads would stand in the way of each other and of whoever waits, and fresh
interpreters would have to import everything first. A copy, made by fork, has all that was imported, but only the thread
that made it, and nothing of what it computes comes back: it writes files and ends. Should it wait for a lock that a
thread had which it does not have, it ends all the same, when its time is up.
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

TURN = struct.Struct("=H")  # the number of a task
MOST = 1 << 16


class Copies:
    """At work when made. `wait`, `stop` or `kill` must follow, and when it returns there are none left."""

    def __init__(self, tasks: Sequence[Task], processes: int, *, patience_s: int) -> None:
        self.ids: list[int] = []
        self._turns = -1
        try:
            tasks = tasks[: self._give_out(min(len(tasks), MOST))]
            for _ in range(min(processes, len(tasks))):
                self._add(tasks, patience_s)
        except OSError as error:
            logger.warning("%d processes have to do, for another could not be started: %s", len(self.ids), error)
        except BaseException:
            self.kill()
            raise

    def _give_out(self, count: int) -> int:
        """Numbers of tasks, of which whoever is free reads the next. Gives how many there is room for in the pipe."""
        self._turns, feed = os.pipe()
        try:
            os.set_blocking(feed, False)
            return os.write(feed, b"".join(map(TURN.pack, range(count)))) // TURN.size
        finally:
            os.close(feed)

    def wait(self) -> None:
        """Until all tasks are done. What failed is left to whoever needs its outcome."""
        while self.ids:
            if status := _status(self.ids[-1]):
                logger.warning("not all was done ahead: a process ended with status %d", status)
            self.ids.pop()
        self._close()

    def stop(self) -> None:
        """No further task is begun."""
        while self._turns != -1 and os.read(self._turns, 1 << 16):
            pass
        self.wait()

    def kill(self) -> None:
        for copy in self.ids:
            with suppress(ProcessLookupError):
                os.kill(copy, signal.SIGKILL)
            _status(copy)
        self.ids.clear()
        self._close()

    def _close(self) -> None:
        turns, self._turns = self._turns, -1
        if turns != -1:
            os.close(turns)

    def _add(self, tasks: Sequence[Task], patience_s: int) -> None:
        parent, blocked = os.getpid(), signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
                copy = os.fork()
            if copy == 0:
                _live(tasks, self._turns, parent, patience_s)
            self.ids.append(copy)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _status(copy: int) -> int:
    """What it ended with, which is waited for."""
    try:
        return os.waitpid(copy, 0)[1]
    except ChildProcessError:  # whoever embeds us has waited in our stead
        return 0


def _live(tasks: Sequence[Task], turns: int, parent: int, patience_s: int) -> NoReturn:
    """The life of a copy, which is not to outlive its parent by more than a task."""
    left = 1
    try:
        _forget(turns)
        signal.alarm(patience_s)
        left = 0
        while os.getppid() == parent and (turn := os.read(turns, TURN.size)):
            left += 1
            with suppress(Exception):
                tasks[TURN.unpack(turn)[0]]()
                left -= 1
    finally:
        os._exit(left > 0)


def _forget(kept: int) -> None:
    """Signals that end a process end this one, and no file is open but standard ones and one more: nobody is to take us
    for the process that we are a copy of."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)) or number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) > 2 and int(entry.name) != kept:
            with suppress(OSError):  # that of the listing itself
                os.close(int(entry.name))
