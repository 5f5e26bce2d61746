"""An engine's place among the ranks of a tensor-parallel group of GPUs.

Rank 0 sends every StepPlan to the others before it launches it, and all launch the same: the same graphs, captured in
the same order, or the same kernels. Sums, tokens and logits travel between the GPUs as part of the launched work, so no
host waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.errors import OutOfMemory
from penstock.flow.ranks import RankWork
from penstock.forward.backend import BackendConfig
from penstock.forward.rank_forward import Followers, GroupEnds
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.cuda_rank_ops import CudaRankOperations
from penstock.kernels.interface import Operations
from penstock.kernels.process_ranks import ProcessRanks
from penstock.kernels.rank_ops import Ranks
from penstock.model.weights.place import Shard, vocabulary_parts


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Without ranks, for an engine of one device, nothing here does anything."""

    ranks: Ranks | None = None
    vocab_size: int = 0
    followers: Followers | None = None  # on rank 0, once the engine serves

    @property
    def draws(self) -> bool:
        """Whether it is this rank that has all logits, and draws tokens."""
        return self.ranks is None or self.ranks.rank == 0

    @property
    def world(self) -> int:
        """Ranks of the group."""
        return 1 if self.ranks is None else self.ranks.world

    def operations(self, own: CudaOperations) -> Operations:
        """`own`, as one rank of several has to use them."""
        if self.ranks is None:
            return own
        return CudaRankOperations(own, self.ranks, vocabulary_parts(self.vocab_size, self.ranks.world))

    def tell(self, message: RankWork) -> None:
        """Rank 0 tells the others what it does next."""
        if self.followers is not None:
            self.followers.send(message)

    def telling(self, message: RankWork) -> AbstractContextManager[None]:
        """The same, of what it computes within the block: a failure there ends the group."""
        self.tell(message)
        return self._ending()

    def together(self, attempt: Callable[[], None], undo: Callable[[], None] = lambda: None) -> None:
        """What all ranks do, or none: `attempt` raises OutOfMemory where it cannot be done, and so does this then, on
        every rank; `undo` is called where it could. Any other failure ends the group: others wait for this rank."""
        failure: OutOfMemory | None = None
        with self._ending():
            try:
                attempt()
            except OutOfMemory as error:
                failure = error
            can = failure is None
            if self.ranks is not None:
                can = self.ranks.least([int(can)]) == [1]
            if not can and failure is None:
                undo()
                failure = OutOfMemory(
                    "another rank of the engine has not enough memory: its log says more", param="model"
                )
        if failure is not None:
            raise failure

    def _ending(self) -> AbstractContextManager[None]:
        """On rank 0: a failure within the block ends the group. Other ranks end of themselves, and all with them."""
        return nullcontext() if self.followers is None else GroupEnds()


ALONE = RankPlace()


class SilentRanks:
    """Implements `rank_ops.Ranks` without any other: for kernels that are noted or timed, not for numbers."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world = rank, world

    def hand_out(self, values: Tensor) -> None: ...

    def add_up(self, partial: Tensor) -> None: ...

    def gather(self, part: Tensor) -> list[Tensor] | None:
        return [part] * self.world if self.rank == 0 else None

    def least(self, numbers: Sequence[int]) -> list[int]:
        return list(numbers)

    def close(self) -> None: ...


def silent_place(shard: Shard, vocab_size: int) -> RankPlace:
    return RankPlace(SilentRanks(*shard), vocab_size) if shard.world > 1 else ALONE


def join(config: BackendConfig) -> RankPlace:
    """Wait until all ranks have loaded their weights."""
    rank, world = config.shard
    if world == 1:
        return ALONE
    device = torch.device("cuda", torch.cuda.current_device())
    return RankPlace(ProcessRanks(rank, world, config.meeting, device=device), config.spec.vocab_size)
