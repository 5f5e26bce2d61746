"""Compiling kernels ahead of their first launch, many at a time.

Within `Ahead.noting` a kernel that is not compiled yet is not launched either: Triton works out which variant it would
take, as always, and a thread compiles that. So it is enough to run the code there, on tensors of the right types and
shapes whatever is in them, to have all variants compiled that it will need. The real launch finds them on disk, in
Triton's own cache; one that was missed is compiled then, which costs time and nothing else.

Threads will do: of the second or so that a kernel takes, a tenth is Python; the rest is LLVM, ptxas and the C compiler,
all without the interpreter's lock.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from triton.backends.nvidia.driver import CudaLauncher, CudaUtils
from triton.runtime import _async_compile
from triton.runtime.cache import triton_key

logger = logging.getLogger(__name__)


class Ahead:
    """Takes the place of Triton's own mode of asynchronous compilation."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="compile")
        self._compiled: dict[str, Future[None]] = {}
        # What Triton wants at the first launch: a hash over all of itself, and what loads kernels, which is C.
        self._tools = self._pool.submit(CudaUtils), self._pool.submit(triton_key)

    @property
    def keys(self) -> set[str]:
        """In Triton's cache, of all that was noted."""
        return set(self._compiled)

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Kernels that are launched within this are compiled instead."""
        wait(self._tools)
        token = _async_compile.active_mode.set(self)
        try:
            yield
        finally:
            _async_compile.active_mode.reset(token)

    def submit(self, key: str, compile_it: Callable[[], Any], finalize: object) -> None:
        """Triton hands its compilations here. It launches what it gets for them: nothing."""
        name = hashlib.sha256(key.encode()).hexdigest()
        if name not in self._compiled:
            self._compiled[name] = self._pool.submit(_compile, compile_it)

    def wait(self) -> None:
        """Until all that was noted is compiled. Failures are left to the launch that will need it."""
        for future in (*self._tools, *self._compiled.values()):
            if error := future.exception():
                logger.debug("not compiled ahead: %s: %s", type(error).__name__, error)
        self._pool.shutdown()


def _compile(compile_it: Callable[[], Any]) -> None:
    """A kernel, and what launches it, which Triton writes in C."""
    compiled = compile_it()
    CudaLauncher(compiled.src, compiled.metadata)
