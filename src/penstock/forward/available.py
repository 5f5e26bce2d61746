"""How much memory there is for us, now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import torch


def host_bytes(root: Path = Path("/")) -> int:
    """Of the machine and of every control group this process is in (containers): the least. Page cache that can be
    dropped counts as available."""
    return max(0, min([_machine(root), *_groups(root)]))


def device_bytes(device: torch.device) -> tuple[int, int]:
    """(free, total) of an accelerator."""
    return torch.cuda.mem_get_info(device)


def _machine(root: Path) -> int:
    try:
        fields = (line.split() for line in (root / "proc/meminfo").read_text().splitlines())
        return next(int(field[1]) * 1024 for field in fields if field[0] == "MemAvailable:")
    except (OSError, StopIteration):  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _groups(root: Path) -> Iterator[int]:
    """What each memory limit above this process leaves. Lines of /proc/self/cgroup are `id:controllers:path`, without
    controllers in version 2. In a container the path may lead nowhere; its limit is then at the mount itself."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, usage = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount, limit, usage = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = mount / path.lstrip("/")
        for folder in (group, *group.parents):
            if folder.is_relative_to(mount) and (left := _left(folder, limit, usage)) is not None:
                yield left


def _left(group: Path, limit: str, usage: str) -> int | None:
    try:
        most, used = int((group / limit).read_text()), int((group / usage).read_text())
        statistics = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):  # no such group, or "max": unlimited
        return None
    return most - used + int(statistics.get("total_inactive_file", statistics.get("inactive_file", 0)))
