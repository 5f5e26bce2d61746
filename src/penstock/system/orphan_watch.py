"""Ends a process whose parent is gone, in whatever state it is: an engine or a frontend."""

from __future__ import annotations

import ctypes
import logging
import os
import select
import signal
import sys
import threading
import time

logger = logging.getLogger(__name__)

LOOK_S = 1.0  # between two looks at the parent process
GRACE_S = 10.0  # in which the process may notice by itself
PR_SET_PDEATHSIG = 1  # of prctl(2)


def watch_parent(lifeline: int) -> None:
    """In a thread: the loop of an engine notices by itself between two steps, but not while it loads, computes or
    hangs. `lifeline` closes with the parent, unless a process that the parent has forked holds a copy of it; the parent
    of this process changes in any case."""
    parent = os.getppid()
    threading.Thread(target=_watch, args=(lifeline, parent), name="parent watch", daemon=True).start()


def die_with_parent() -> None:
    """Have the kernel kill this process with its parent, also while it is stopped (SIGSTOP), when no thread of it can
    watch anything. Strictly with the thread that started it: only for processes that a main thread starts. Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def end_orphan() -> None:
    """End this process at once: no client is left, and an orderly exit may wait for threads."""
    logger.info("the parent process is gone; ending")
    logging.shutdown()
    os._exit(0)


def _watch(lifeline: int, parent: int) -> None:
    poll = select.poll()
    poll.register(lifeline, 0)  # hang-ups alone
    while not poll.poll(LOOK_S * 1000) and os.getppid() == parent:
        pass
    if poll.poll(0):  # then the loop notices, too
        time.sleep(GRACE_S)
    end_orphan()
