"""Compiling kernels ahead of their first launch, many at a time.

Within `Ahead.noting` a kernel that is not compiled yet is not launched either: Triton works out which variant it would
take, as always, and that is noted. So it is enough to run the code there, on tensors of the right types and shapes
whatever is in them, to have all variants compiled that it will need. The real launch finds them on disk, in Triton's
own cache; one that was missed is compiled then, which costs time and nothing else.

They are compiled by copies of this process, made by fork. Threads would stand in the way of each other, and of this
process, which has a model to load: a quarter of what a compilation takes needs the interpreter. Fresh interpreters
would have to import torch first, which takes as long as all compilations together. A copy has only the thread that
made it and must not use CUDA, whose state is not its own, but it has no need to: it compiles, writes files and ends.
Should one wait for a lock that a thread had which it does not have, it is killed (`PATIENCE_S`).
"""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

from triton.backends.nvidia.driver import CudaLauncher
from triton.runtime import _async_compile
from triton.runtime.cache import get_cache_manager

from penstock.kernels.wake import wait_awake

logger = logging.getLogger(__name__)

PATIENCE_S = 60.0  # for all kernels of a model, which take 2 to 10 s

Compilation = Callable[[], Any]


class Ahead:
    """Takes the place of Triton's own mode of asynchronous compilation. Where its block ends all is compiled."""

    def __init__(self, processes: int) -> None:
        self.keys: set[str] = set()  # in Triton's cache, of all that was noted
        self._processes = processes
        self._noted: list[Compilation] = []
        self._copies: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
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
            self._begin()

    def submit(self, key: str, compile_it: Compilation, finalize: object) -> None:
        """Triton hands its compilations here. It launches what it gets for them: nothing."""
        name = hashlib.sha256(key.encode()).hexdigest()
        if name not in self.keys:
            self.keys.add(name)
            if not any(Path(get_cache_manager(name).cache_dir).glob("*.cubin")):
                self._noted.append(compile_it)

    def _begin(self) -> None:
        noted, self._noted = self._noted[:256], []
        turns, feed = os.pipe()
        os.write(feed, bytes(range(len(noted))))  # whoever is free reads the number of the next
        os.close(feed)
        try:
            for _ in range(min(self._processes, len(noted))):
                self._copies.append(_copy(noted, turns))
        except OSError as error:
            logger.debug("not compiled ahead: %s", error)
        os.close(turns)

    def wait(self) -> None:
        """Until all that was noted is compiled. Failures are left to the launch that will need it."""
        until = time.monotonic() + PATIENCE_S
        for copy in self._copies:
            while (status := _status(copy)) is None:
                if time.monotonic() > until:
                    with suppress(ProcessLookupError):
                        os.kill(copy, signal.SIGKILL)
                time.sleep(0.001)
            if status:
                logger.debug("not compiled ahead: process %d ended with %d", copy, status)
        self._copies.clear()


def _copy(compilations: list[Compilation], turns: int) -> int:
    """The process id of a copy of this process that compiles those whose turn it is, and ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        copy = os.fork()
    if copy:
        return copy
    left = 0
    try:
        os.closerange(3, turns)  # nobody is to take us for what we are a copy of
        os.closerange(turns + 1, os.sysconf("SC_OPEN_MAX"))
        while turn := os.read(turns, 1):
            left += 1
            with suppress(Exception):
                compiled = compilations[turn[0]]()
                CudaLauncher(compiled.src, compiled.metadata)  # what launches it, which Triton writes in C
                left -= 1
    finally:
        os._exit(left > 0)


def _status(copy: int) -> int | None:
    """How it ended, if it has."""
    try:
        ended, status = os.waitpid(copy, os.WNOHANG)
    except ChildProcessError:  # whoever embeds us has asked for it in our stead
        return 0
    return status if ended else None
