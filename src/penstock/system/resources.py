"""Memory and CPU cores available to this process, within the limits of its control groups."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
MEMORY_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def host_bytes(root: Path = Path("/")) -> int:
    """Free memory: the least of the machine's and of every control group this process is in (containers). Page cache
    that can be dropped counts as free."""
    return max(0, min([_machine(root), *_groups(root)]))


def cores(root: Path = Path("/")) -> int:
    """CPU cores that this process may run on, at most the CPU quota of its control groups."""
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([usable, *_quotas(root)]))


def gpu_count(root: Path = Path("/"), environ: Mapping[str, str] = os.environ) -> int:
    """NVIDIA GPUs that this process may use."""
    visible = environ.get(VISIBLE_GPUS)
    if visible is not None:
        return len([part for part in visible.split(",") if part.strip() not in ("", "-1")])
    return len(list((root / "proc/driver/nvidia/gpus").glob("*")))


def only_gpus(indices: Sequence[int], environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child process that sees some of this process's GPUs."""
    visible = [part.strip() for part in environ.get(VISIBLE_GPUS, "").split(",") if part.strip()]
    return {VISIBLE_GPUS: ",".join(visible[index] if index < len(visible) else str(index) for index in indices)}


def return_free_memory() -> None:
    """Return freed memory to the system: glibc keeps most of what a large text took. Takes milliseconds, while other
    threads run."""
    if (trim := _malloc_trim()) is not None:
        trim(0)


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        found: Callable[[int], int] = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):  # another system, or another C library
        return None
    return found


def _machine(root: Path) -> int:
    try:
        fields = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        return next(int(field[1]) * 1024 for field in fields if field[0] == "MemAvailable:")
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(root: Path) -> Iterator[int]:
    """The memory that each limit above this process leaves."""
    for folder, is_new in _folders(root, "memory"):
        limit, usage = ("memory.max", "memory.current") if is_new else MEMORY_V1
        if (left := _memory_left(folder, limit, usage)) is not None:
            yield left


def _quotas(root: Path) -> Iterator[int]:
    """The CPU quota of each group above this process in cores, rounded up."""
    for folder, is_new in _folders(root, "cpu"):
        try:
            if is_new:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota, period = ((folder / name).read_text() for name in ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
            if int(quota) > 0:
                yield -(-int(quota) // int(period))
        except (OSError, ValueError):  # no such file, or "max": unlimited
            continue


def _folders(root: Path, controller: str) -> Iterator[tuple[Path, bool]]:
    """The control groups this process is in, innermost first, and whether they are of version 2. Lines of
    /proc/self/cgroup are `id:controllers:path`, without controllers in version 2. In a container the path may lead
    nowhere; its limit is then at the mount itself."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount = root / "sys/fs/cgroup"
        elif controller in controllers.split(","):
            mount = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount):
                yield folder, controllers == ""


def _memory_left(group: Path, limit: str, usage: str) -> int | None:
    try:
        most, used = int((group / limit).read_text()), int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max": unlimited
        return None
    return most - used + int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
