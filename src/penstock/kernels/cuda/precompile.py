"""Precompile: compile the Triton kernels of a model before their first launch, many at a time.

Within `Precompiler.collecting` no kernel is launched. For one that is not compiled yet Triton determines the variant,
as for every launch, and its compilation is collected. So running the steps there on blank tensors of the right types
and shapes finds all variants that they need. The real launch finds them in Triton's cache on disk; one that was missed
is compiled then, which only costs time.

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


class Precompiler:
    """Takes the place of Triton's own mode of asynchronous compilation. A context manager: at its end all compilations
    have ended."""

    def __init__(self, processes: int, *, ready: Callable[[], None] = lambda: None) -> None:
        """`ready` returns once Triton is set up, if another thread does that: it would be done twice otherwise."""
        self.keys: set[str] = set()  # in Triton's cache, of all collected kernels
        self._processes = processes
        self._ready = ready
        self._collected: list[Compilation] = []
        self._pool: ForkPool | ThreadPool | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None and self._pool is not None:  # the kernels are not needed any more
            self._pool.kill()
            self._pool = None
        self.wait()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Collect the kernels that are launched within the block instead of launching them; its end starts to compile
        them."""
        self._ready()
        with triton_internals.deferring(self):
            yield
        if self._collected:
            self.wait()  # for an earlier block
            tasks, self._collected = [partial(_compile, one) for one in self._collected], []
            pool = ForkPool if owns_process() else ThreadPool
            self._pool = pool(tasks, self._processes, patience_s=PATIENCE_S)

    @property
    def is_compiling(self) -> bool:
        """Whether compilations were started that `wait` has not waited for."""
        return self._pool is not None

    def submit(self, key: str, compile_it: Compilation, finalize: object) -> None:
        """Called by Triton with a compilation. Returns no kernel, so that Triton launches none."""
        name = hashlib.sha256(key.encode()).hexdigest()
        if name not in self.keys:
            self.keys.add(name)
            if not triton_internals.is_cached(name):
                self._collected.append(compile_it)

    def wait(self) -> None:
        """Until all collected kernels are compiled. Failures are raised by the launch that needs the kernel."""
        if self._pool is not None:
            self._pool.wait()
            self._pool = None


def _compile(compile_it: Compilation) -> None:
    triton_internals.build_launcher(compile_it())
