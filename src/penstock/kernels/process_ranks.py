"""Ranks in processes of their own, which exchange tensors through torch.distributed: gloo, over loopback.

A process group is state of the whole process, so only processes of Penstock's have one. The ranks meet in a file of a
private folder. Nothing is pickled: of torch's collectives only those of tensors are used.
"""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

# Ranks compute equal shares: one that lets the others wait so long has stopped.
TIMEOUT_S = 60.0
LOOPBACK = "lo"  # gloo's own choice would be the interface of the host's name


class ProcessRanks:
    """Implements `rank_ops.Ranks`. Every call raises RuntimeError if another rank has died or does not come."""

    def __init__(self, rank: int, world: int, folder: str, timeout_s: float = TIMEOUT_S) -> None:
        """Waits for all ranks. `folder` is the same for all, private and used once."""
        self.rank, self.world = rank, world
        if Path(f"/sys/class/net/{LOOPBACK}").exists():
            os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
        meeting = f"file://{Path(folder) / 'ranks'}"
        timeout = timedelta(seconds=timeout_s)
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=timeout)
        dist.barrier()

    def add_up(self, partial: Tensor) -> None:
        dist.all_reduce(partial)

    def gather(self, part: Tensor) -> list[Tensor] | None:
        parts = [torch.empty_like(part) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(part, parts, dst=0)
        return parts

    def close(self) -> None:
        dist.destroy_process_group()
