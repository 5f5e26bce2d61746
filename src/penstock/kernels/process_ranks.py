"""Ranks in processes of their own, which exchange tensors through torch.distributed: gloo on CPUs, NCCL between GPUs.

A process group is state of the whole process, so only processes of Penstock's have one. The ranks meet in a file of a
private folder, and over loopback. Nothing is pickled: of torch's collectives only those of tensors are used.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

# Ranks compute equal shares: one that lets the others wait so long has stopped.
TIMEOUT_S = 60.0
LOOPBACK = "lo"  # the libraries' own choice would be the interface of the host's name
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


class ProcessRanks:
    """Implements `rank_ops.Ranks`. Every call raises RuntimeError if another rank has died or does not come; on a GPU
    that shows later, as calls only queue the work."""

    def __init__(
        self, rank: int, world: int, folder: str, timeout_s: float = TIMEOUT_S, device: torch.device | None = None
    ) -> None:
        """Waits for all ranks. `folder` is the same for all, private and used once. `device`: the GPU of this rank, of
        which no other has the same; None: tensors are on the CPU."""
        self.rank, self.world, self._device = rank, world, device
        if Path(f"/sys/class/net/{LOOPBACK}").exists():
            os.environ.update(dict.fromkeys(INTERFACES, LOOPBACK))
        dist.init_process_group(
            "gloo" if device is None else "nccl",
            init_method=f"file://{Path(folder) / 'ranks'}",
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=timeout_s),
            device_id=device,
        )
        self.least([0])

    def hand_out(self, values: Tensor) -> None:
        dist.broadcast(values, src=0)

    def add_up(self, partial: Tensor) -> None:
        dist.all_reduce(partial)

    def gather(self, part: Tensor) -> list[Tensor] | None:
        parts = [torch.empty_like(part) for _ in range(self.world)] if self.rank == 0 else None
        dist.gather(part, parts, dst=0)
        return parts

    def least(self, numbers: Sequence[int]) -> list[int]:
        values = torch.tensor(numbers, dtype=torch.int64, device=self._device)
        dist.all_reduce(values, op=dist.ReduceOp.MIN)
        found: list[int] = values.tolist()
        return found

    def close(self) -> None:
        dist.destroy_process_group()
