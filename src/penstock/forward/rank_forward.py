"""The forward pass on several ranks: rank 0 tells the others what to compute, and computes its own share.

Every rank has the same slots. The other ranks do not know which tokens rank 0 draws or drafts: they get each step's
tokens from rank 0 during the computation (`kernels.rank_ops`), so a failure to draw leaves the ranks in step. After a
failure to compute, other ranks may wait for sums that will never come. So it ends the process of rank 0, and with it
the group; the frontend starts another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from penstock.flow import Admit, Extend, Row, StepPlan
from penstock.flow.ranks import RankAdapter, RankLogits, RankStep, RankWork
from penstock.forward.memory import CacheSize
from penstock.kernels.rank_ops import Ranks

if TYPE_CHECKING:
    from penstock.forward.torch_forward import Computed, Forward

logger = logging.getLogger(__name__)


class Followers(Protocol):
    """The other ranks, as rank 0 has them: `engine.rank_group`."""

    def wait_loaded(self) -> int:
        """Until they have loaded their weights: the bytes of all of them. Raises what keeps one from it."""

    def send(self, message: RankWork) -> None:
        """To all of them."""

    def receive(self, wait_s: float) -> Sequence[tuple[int, RankAdapter]]:
        """What they have answered since the last call, by rank. Waits up to `wait_s` for the first."""

    def close(self) -> None:
        """End them."""


class Leader(Protocol):
    """Rank 0, as any other has it: `engine.rank_worker`. All calls raise PeerGone when it has ended."""

    def loaded(self, weights_bytes: int) -> None:
        """Tell it that this rank has its weights. Waits until all ranks have theirs."""

    def receive(self, timeout_s: float | None) -> Sequence[RankWork]:
        """What it asks for, in order; waits up to `timeout_s` (None: forever) for the first."""

    def send(self, message: RankAdapter) -> None: ...


class LeadingForward:
    """Implements `Forward` on rank 0."""

    def __init__(self, own: Forward, followers: Followers) -> None:
        self._own, self._followers, self.slots = own, followers, own.slots
        self._admits: list[Admit] = []  # not sent yet, as _extends
        self._extends: list[Extend] = []

    def apply(self, admits: Sequence[Admit], extends: Sequence[Extend]) -> None:
        self._own.apply(admits, extends)
        self._admits += admits
        self._extends += extends

    def compute(self, rows: Sequence[Row], *, all_hidden: bool) -> Computed:
        plan = StepPlan(0, self._admits, self._extends, list(rows))
        self._admits, self._extends = [], []
        with GroupEnds():
            self._followers.send(RankStep(plan, all_hidden))
            return self._own.compute(rows, all_hidden=all_hidden)

    def logits(self, hidden: Tensor, places: Sequence[int]) -> Tensor:
        with GroupEnds():
            self._followers.send(RankLogits(list(places)))
            return self._own.logits(hidden, places)

    def close(self) -> None:
        self._own.close()
        self._followers.close()


class GroupEnds:
    """What fails inside ends this process: see above."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            logger.error("a rank failed; its group ends", exc_info=error)
            raise SystemExit(1) from error


@torch.inference_mode()
def follow(forward: Forward, messages: Iterable[RankWork]) -> None:
    """Of any other rank: compute its share of what rank 0 asks for."""
    hidden = torch.empty(0)
    for message in messages:
        if isinstance(message, RankLogits):
            forward.logits(hidden, message.places)
            continue
        assert isinstance(message, RankStep)  # on a CPU rank 0 ends the others when it sleeps
        plan = message.plan
        forward.apply(plan.admits, plan.extends)
        hidden = forward.compute(plan.rows, all_hidden=message.all_hidden).hidden


def agreed_size(size: CacheSize, ranks: Ranks) -> CacheSize:
    """The size of every rank's KV cache: that of the rank with the least room."""
    context, *blocks = ranks.least([size.context, *size.blocks])
    return replace(size, context=context, blocks=tuple(blocks))
