"""CPU and memory of the machine and of the server's processes, from /proc; None on systems without it."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
IDLE = (3, 4)  # idle and iowait, of the fields of /proc/stat


class MachineUse(NamedTuple):
    """CPU figures are shares of all the machine's cores since the last reading; None in the first one."""

    cpu: float | None
    server_cpu: float | None  # frontend and engine processes
    memory_used: int  # bytes; page cache that can be dropped is free
    memory_total: int
    server_memory: int  # resident bytes of the server's processes; pages that they share count for each


class Machine:
    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._page_bytes = os.sysconf("SC_PAGE_SIZE")
        self._ticks: tuple[int, int] | None = None  # all and busy, of the last reading
        self._process_ticks: dict[int, int] = {}

    def read(self, engines: Iterable[int]) -> MachineUse | None:
        """`engines`: the ids of the engine processes. Those that have ended meanwhile do not count."""
        try:
            total, busy = self._cpu_ticks()
            memory = self._meminfo()
            memory_total, available = memory["MemTotal"], memory["MemAvailable"]
        except (OSError, ValueError, KeyError, IndexError):
            return None
        own = {pid: use for pid in {os.getpid(), *engines} if (use := self._process(pid)) is not None}
        cpu = server_cpu = None
        if self._ticks is not None and total > self._ticks[0]:
            passed = total - self._ticks[0]
            cpu = (busy - self._ticks[1]) / passed
            before = self._process_ticks
            server_cpu = sum(ticks - before[pid] for pid, (ticks, _) in own.items() if pid in before) / passed
        self._ticks = total, busy
        self._process_ticks = {pid: ticks for pid, (ticks, _) in own.items()}
        return MachineUse(
            cpu, server_cpu, memory_total - available, memory_total, sum(resident for _, resident in own.values())
        )

    def _cpu_ticks(self) -> tuple[int, int]:
        """`cpu user nice system idle iowait irq softirq steal guest …`: guest time is in user time already."""
        with (self._proc / "stat").open() as file:
            fields = [int(field) for field in file.readline().split()[1:9]]
        total = sum(fields)
        return total, total - sum(fields[place] for place in IDLE)

    def _meminfo(self) -> dict[str, int]:
        """Bytes by name."""
        lines = (line.split() for line in (self._proc / "meminfo").read_text().splitlines())
        return {name.rstrip(":"): int(kibibytes) * 1024 for name, kibibytes, *_ in lines}

    def _process(self, pid: int) -> tuple[int, int] | None:
        """Ticks of user and system time, and resident bytes."""
        try:
            after_name = (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
            pages = int((self._proc / str(pid) / "statm").read_text().split()[1])
            return int(after_name[11]) + int(after_name[12]), pages * self._page_bytes
        except (OSError, ValueError, IndexError):
            return None
