"""Process-wide changes that make an engine start and run faster. None of them happens in a process that Penstock does
not own (`system.ownership`): there an engine in the caller's process does without.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from penstock.errors import InvalidSetting
from penstock.startup import bytecode
from penstock.startup.gpu_warmup import wake_device
from penstock.system import gc_control
from penstock.system.ownership import owns_process


@contextmanager
def fast_start() -> Iterator[None]:
    """No garbage collection and no bytecode lost inside the block, which imports torch and builds an engine."""
    if not owns_process():
        yield
        return
    with gc_control.paused(), bytecode.keep():
        yield


@contextmanager
def fast_import(*, cuda: bool) -> Iterator[None]:
    """Around the import of torch: forked processes compile its bytecode where that is missing, and with `cuda` a thread
    sets up the device. The forks come first: CUDA does not survive one."""
    if not owns_process():
        yield
        return
    with bytecode.compiled_ahead():
        if cuda:
            wake_device()
        yield


def freeze_startup_objects() -> None:
    if owns_process():
        gc_control.freeze_startup_objects()


def set_torch_threads(count: int) -> None:
    if owns_process():
        import torch

        torch.set_num_threads(count)


def step_scope(*, native: bool) -> Callable[[], AbstractContextManager[None]]:
    """What a step in this process runs in. The native kernels have threads of their own, which torch's would compete
    with: where those were not set to one for the process, they are for the step."""
    if owns_process() or not native:
        return nullcontext
    from penstock.kernels.torch_internals import one_thread

    return one_thread


def check_torch_threads(requested: int | None) -> None:
    """For an engine that computes with torch on the CPU: raises InvalidSetting if `threads` asks for a thread count
    that only a process-wide change could give."""
    import torch

    if requested is not None and not owns_process() and requested != (actual := torch.get_num_threads()):
        raise InvalidSetting(
            f"threads: torch computes in this process with its own {actual} threads, not {requested}. Call "
            f"torch.set_num_threads({requested}) first, or run the engine in its own process (isolate)",
            param="threads",
        )
