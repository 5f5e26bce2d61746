"""CPU and memory as /proc has them, read twice."""

import os
from pathlib import Path

import pytest

from penstock.observe.machine import Machine

ENGINE = 4321


def write(proc: Path, *, cpu: str, own: int, engine: int | None) -> None:
    (proc / "stat").write_text(f"cpu  {cpu}\ncpu0 1 1 1 1\n")
    (proc / "meminfo").write_text("MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\nHugePages_Total:  0\n")
    for pid, ticks in ((os.getpid(), own), (ENGINE, engine)):
        folder = proc / str(pid)
        folder.mkdir(exist_ok=True)
        if ticks is None:
            (folder / "stat").unlink()
            continue
        name = "(a) name) S"  # a process may be called anything
        (folder / "stat").write_text(f"{pid} {name} 1 1 1 0 -1 0 0 0 0 0 {ticks} 5 0 0 20 0 1 0 100\n")
        (folder / "statm").write_text("900 10 3 1 0 50 0\n")


def test_shares_are_of_all_cores_since_the_last_reading(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    write(tmp_path, cpu="100 0 100 700 100 0 0 0 50 0", own=10, engine=20)
    first = machine.read([ENGINE])
    assert first is not None
    assert (first.cpu, first.server_cpu) == (None, None)
    assert (first.memory_used, first.memory_total) == (600 * 1024, 1000 * 1024)
    assert first.server_memory == 2 * 10 * os.sysconf("SC_PAGE_SIZE")
    write(tmp_path, cpu="150 0 150 750 150 0 0 0 99 0", own=30, engine=60)
    second = machine.read([ENGINE])
    assert second is not None
    assert (second.cpu, second.server_cpu) == (0.5, 0.3)
    assert machine.read([ENGINE]) is not None  # no tick has passed: no division by it
    write(tmp_path, cpu="250 0 150 750 150 0 0 0 99 0", own=40, engine=None)
    third = machine.read([ENGINE])
    assert third is not None
    assert third.server_cpu == pytest.approx(0.1)  # the engine has ended


def test_a_system_without_proc_says_nothing(tmp_path: Path) -> None:
    assert Machine(tmp_path).read([]) is None


def test_this_machine() -> None:
    use = Machine().read([])
    if use is not None:
        assert 0 < use.server_memory < use.memory_total
        assert 0 < use.memory_used < use.memory_total
