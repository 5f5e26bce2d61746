"""Compiling kernels ahead of their first launch, many at a time.

Within `Ahead.noting` a kernel that is not compiled yet is not launched either: Triton works out which variant it would
take, as always, and that is noted. So it is enough to run the code there, on tensors of the right types and shapes
whatever is in them, to have all variants compiled that it will need. The real launch finds them on disk, in Triton's
own cache; one that was missed is compiled then, which costs time and nothing else.

Forked processes compile them while this one loads the model; they do not use CUDA, whose state a fork does not copy.
A process that Penstock does not own is not forked: threads compile there, more slowly.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

from penstock.kernels.cuda import triton_internals
from penstock.system.fork_pool import ForkPool
from penstock.system.ownership import owns_process
from penstock.system.thread_pool import ThreadPool

PATIENCE_S = 60  # for all kernels of a model, which take 2 to 10 s

Compilation = Callable[[], Any]


class Ahead:
    """Takes the place of Triton's own mode of asynchronous compilation. At the end of its block nobody compiles any
    more."""

    def __init__(self, processes: int, *, ready: Callable[[], None] = lambda: None) -> None:
        """`ready` returns once Triton is set up, if another thread does that: it would be done twice otherwise."""
        self.keys: set[str] = set()  # in Triton's cache, of all that was noted
        self._processes = processes
        self._ready = ready
        self._noted: list[Compilation] = []
        self._pool: ForkPool | ThreadPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None and self._pool is not None:  # nobody will need what they compile
            self._pool.kill()
            self._pool = None
        self.wait()

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Kernels that are launched within this are noted instead, and compiled from its end on."""
        self._ready()
        with triton_internals.deferring(self):
            yield
        if self._noted:
            self.wait()  # for what was noted before, if anything was
            tasks, self._noted = [partial(_compile, one) for one in self._noted], []
            pool = ForkPool if owns_process() else ThreadPool
            self._pool = pool(tasks, self._processes, patience_s=PATIENCE_S)

    @property
    def at_work(self) -> bool:
        """Whether anything is being compiled, or was and nobody has waited for it."""
        return self._pool is not None

    def submit(self, key: str, compile_it: Compilation, finalize: object) -> None:
        """Triton hands its compilations here. It launches what it gets for them: nothing."""
        name = hashlib.sha256(key.encode()).hexdigest()
        if name not in self.keys:
            self.keys.add(name)
            if not triton_internals.is_cached(name):
                self._noted.append(compile_it)

    def wait(self) -> None:
        """Until all that was noted is compiled. Failures are left to the launch that will need it."""
        if self._pool is not None:
            self._pool.wait()
            self._pool = None


def _compile(compile_it: Compilation) -> None:
    triton_internals.build_launcher(compile_it())
