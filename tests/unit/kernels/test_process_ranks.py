"""Ranks in processes of their own: a rank that does not come."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

RANK = """
import sys, torch
from penstock.kernels.process_ranks import ProcessRanks
ranks = ProcessRanks(int(sys.argv[1]), 2, sys.argv[2], timeout_s=float(sys.argv[3]))
x = torch.full((2, 3), float(ranks.rank + 1))
ranks.add_up(x)
assert x.tolist() == [[3.0] * 3] * 2
tokens = torch.tensor([5, 6]) if ranks.rank == 0 else torch.tensor([0, -1])
ranks.hand_out(tokens)
assert tokens.tolist() == [5, 6]
assert ranks.least([3 + ranks.rank, 9 - ranks.rank]) == [3, 8]
parts = ranks.gather(torch.full((1, 2), float(ranks.rank)))
assert (parts is None) == (ranks.rank == 1)
assert parts is None or [part.tolist() for part in parts] == [[[0.0, 0.0]], [[1.0, 1.0]]]
if ranks.rank == 1:
    print("waits", flush=True)
    sys.stdin.read()
try:
    ranks.add_up(x)
except RuntimeError:
    print("gives up", flush=True)
"""


@pytest.mark.parallel
def test_sums_parts_and_a_rank_that_does_not_come(tmp_path: Path) -> None:
    """Nobody waits longer than the group allows."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(tmp_path), "20"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        assert started[1].stdout is not None
        assert started[1].stdout.readline() == "waits\n"
        assert started[0].communicate(timeout=120)[0] == "gives up\n"
    finally:
        for process in started:
            process.kill()
            process.communicate()
