"""The processes of a tensor-parallel engine."""

from __future__ import annotations

from pathlib import Path

from helpers.server_process import alive


def other_ranks(pid: int) -> list[int]:
    """Process ids of ranks 1 and up, whose rank 0 is the engine process `pid`."""
    pids = [int(one) for task in Path(f"/proc/{pid}/task").glob("*/children") for one in task.read_text().split()]
    return [one for one in pids if b"penstock.engine.rank_worker" in Path(f"/proc/{one}/cmdline").read_bytes()]


def all_gone(pids: list[int]) -> bool:
    return not any(map(alive, pids))
