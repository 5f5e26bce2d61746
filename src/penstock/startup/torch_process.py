"""Torch's own process-wide state: its threads, and the device memory that it keeps. As in `process_tuning`, nothing is
changed in a process that Penstock does not own."""

from __future__ import annotations

import torch

from penstock.errors import InvalidSetting
from penstock.system.ownership import owns_process


def has_cuda() -> bool:
    return torch.cuda.is_available()


def gpu_count() -> int:
    return torch.cuda.device_count()


def set_torch_threads(count: int) -> None:
    if owns_process():
        torch.set_num_threads(count)


def check_torch_threads(requested: int | None) -> None:
    """For an engine that computes with torch on the CPU: raises InvalidSetting if `threads` asks for a thread count
    that only a process-wide change could give."""
    if requested is not None and not owns_process() and requested != (actual := torch.get_num_threads()):
        raise InvalidSetting(
            f"threads: torch computes in this process with its own {actual} threads, not {requested}. Call "
            f"torch.set_num_threads({requested}) first, or run the engine in its own process (isolate)",
            param="threads",
        )


def release_device_memory() -> None:
    """Give the memory of tensors that are gone back to the device. Torch keeps it for its own later use."""
    torch.cuda.empty_cache()
