"""Process-wide changes that make an engine start and run faster. None of them happens in a process that Penstock does
not own (`system.ownership`): there an engine in the caller's process does without. `torch_process` has those of engines
that compute with torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.startup import bytecode
from penstock.system import gc_control
from penstock.system.ownership import owns_process


@contextmanager
def fast_start() -> Iterator[None]:
    """No garbage collection and no bytecode lost inside the block, which builds an engine."""
    if not owns_process():
        yield
        return
    with gc_control.paused(), bytecode.keep():
        yield


@contextmanager
def fast_import(wake_device: Callable[[], None] | None) -> Iterator[None]:
    """Around the import of torch: forked processes compile its bytecode where that is missing. `wake_device` sets up
    the device in a thread; the forks come first: CUDA does not survive one."""
    if not owns_process():
        yield
        return
    with bytecode.compiled_ahead():
        if wake_device is not None:
            wake_device()
        yield


def freeze_startup_objects() -> None:
    if owns_process():
        gc_control.freeze_startup_objects()
