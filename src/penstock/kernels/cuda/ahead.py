"""Compiling kernels ahead of their first launch, many at a time.

Within `Ahead.noting` a kernel that is not compiled yet is not launched either: Triton works out which variant it would
take, as always, and that is noted. So it is enough to run the code there, on tensors of the right types and shapes
whatever is in them, to have all variants compiled that it will need. The real launch finds them on disk, in Triton's
own cache; one that was missed is compiled then, which costs time and nothing else.

They are compiled by copies of this process, made by fork. Threads would stand in the way of each other, and of this
process, which has a model to load: a quarter of what a compilation takes needs the interpreter. Fresh interpreters
would have to import torch first, which takes as long as all compilations together. A copy has only the thread that
made it and must not use CUDA, whose state is not its own, but it has no need to: it compiles, writes files and ends.
Should one wait for a lock that a thread had which it does not have, it ends all the same (`PATIENCE_S`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn, Self

from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import _async_compile
from triton.runtime.cache import get_cache_manager

from penstock.kernels.wake import wait_awake

logger = logging.getLogger(__name__)

PATIENCE_S = 60  # for all kernels of a model, which take 2 to 10 s
MOST = 256  # kernels that are compiled ahead: their numbers are bytes

Compilation = Callable[[], Any]


class Ahead:
    """Takes the place of Triton's own mode of asynchronous compilation. At the end of its block nobody compiles any
    more."""

    def __init__(self, processes: int) -> None:
        self.keys: set[str] = set()  # in Triton's cache, of all that was noted
        self._processes = processes
        self._noted: list[Compilation] = []
        self._copies: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None:  # nobody will need what they compile
            for copy in self._copies:
                with suppress(ProcessLookupError):
                    os.kill(copy, signal.SIGKILL)
                _status(copy)
            self._copies.clear()
        self.wait()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Kernels that are launched within this are noted instead, and compiled from its end on."""
        wait_awake()  # Triton would do again what is about to be done
        token = _async_compile.active_mode.set(self)
        try:
            yield
        finally:
            _async_compile.active_mode.reset(token)
        try:
            self._begin()
        except OSError as error:
            logger.warning("kernels will be compiled one by one: %s", error)

    def submit(self, key: str, compile_it: Compilation, finalize: object) -> None:
        """Triton hands its compilations here. It launches what it gets for them: nothing."""
        name = hashlib.sha256(key.encode()).hexdigest()
        if name not in self.keys:
            self.keys.add(name)
            if not _is_cached(name):
                self._noted.append(compile_it)

    def _begin(self) -> None:
        noted, self._noted = self._noted[:MOST], []
        turns, feed = os.pipe()
        try:
            os.write(feed, bytes(range(len(noted))))  # whoever is free reads the number of the next
            os.close(feed)
            for _ in range(min(self._processes, len(noted))):
                _copy(noted, turns, self._copies)
        finally:
            os.close(turns)

    def wait(self) -> None:
        """Until all that was noted is compiled. Failures are left to the launch that will need it."""
        while self._copies:
            if status := _status(self._copies[-1]):
                logger.warning("not all kernels were compiled ahead: a process ended with status %d", status)
            self._copies.pop()


def _is_cached(name: str) -> bool:
    """Whether Triton has that kernel already. A cache that is no folder is not asked."""
    folder = getattr(get_cache_manager(name), "cache_dir", None)
    return folder is not None and any(Path(folder).glob("*.cubin"))


def _status(copy: int) -> int:
    """What it ended with, which is waited for."""
    try:
        return os.waitpid(copy, 0)[1]
    except ChildProcessError:  # whoever embeds us has waited in our stead
        return 0


def _copy(compilations: list[Compilation], turns: int, copies: list[int]) -> None:
    """Adds to `copies` the id of a copy of this process that compiles those whose turn it is, and ends."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
            copy = os.fork()
        if copy == 0:
            _compile(compilations, turns)
        copies.append(copy)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def _compile(compilations: list[Compilation], turns: int) -> NoReturn:
    """The life of a copy."""
    left = 1
    try:
        _forget(turns)
        signal.alarm(PATIENCE_S)
        left = 0
        while turn := os.read(turns, 1):
            left += 1
            with suppress(Exception):
                compiled = compilations[turn[0]]()
                CudaLauncher(compiled.src, compiled.metadata)  # what launches it, which Triton writes in C
                left -= 1
    finally:
        os._exit(left > 0)


def _forget(kept: int) -> None:
    """Signals have their usual effects, and no file is open but standard ones and one more: nobody is to take us for
    the process that we are a copy of."""
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for entry in list(Path("/proc/self/fd").iterdir()):
        if int(entry.name) > 2 and int(entry.name) != kept:
            with suppress(OSError):  # that of the listing itself
                os.close(int(entry.name))
