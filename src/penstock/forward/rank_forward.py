"""The forward pass on several ranks: rank 0 tells the others what to compute, and computes its own share.

Every rank has the same slots. Tokens that rank 0 draws or drafts travel with the step that computes them, so a failure
to draw leaves the ranks in step. A failure to compute does not: other ranks may wait for sums that will never come. It
ends the process of rank 0, and with it the group; the frontend starts another.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from penstock.flow import Admit, Extend, Row, StepPlan
from penstock.flow.ranks import RankLogits, RankPages, RankStep
from penstock.forward.memory import CacheSize
from penstock.forward.torch_forward import Computed, Forward

logger = logging.getLogger(__name__)


class Followers(Protocol):
    """The other ranks, as rank 0 has them: `engine.rank_group`."""

    def wait_loaded(self) -> int:
        """Until they have loaded their weights: the bytes of all of them. Raises what keeps one from it."""

    def send(self, message: RankPages | RankStep | RankLogits) -> None:
        """To all of them."""

    def close(self) -> None:
        """End them."""


class LeadingForward:
    """Implements `Forward` on rank 0."""

    def __init__(self, own: Forward, followers: Followers) -> None:
        self._own, self._followers, self.slots = own, followers, own.slots
        self._admits: list[Admit] = []  # not sent yet, as _extends
        self._extends: list[Extend] = []
        self._known: dict[int, int] = {}  # by slot: tokens that its Admit brought

    def apply(self, admits: Sequence[Admit], extends: Sequence[Extend]) -> None:
        self._own.apply(admits, extends)
        self._admits += admits
        self._extends += extends
        self._known |= {admit.slot: len(admit.tokens) for admit in admits}

    def compute(self, rows: Sequence[Row], *, all_hidden: bool) -> Computed:
        plan = StepPlan(0, self._admits, self._extends, list(rows))
        self._admits, self._extends = [], []
        with _GroupEnds():
            self._followers.send(RankStep(plan, [self._drawn(row) for row in rows], all_hidden))
            return self._own.compute(rows, all_hidden=all_hidden)

    def logits(self, hidden: Tensor, places: Sequence[int]) -> Tensor:
        with _GroupEnds():
            self._followers.send(RankLogits(list(places)))
            return self._own.logits(hidden, places)

    def close(self) -> None:
        self._own.close()
        self._followers.close()

    def _drawn(self, row: Row) -> list[int]:
        end = row.start + row.count
        first = max(row.start, self._known[row.slot])
        return self.slots.tokens[row.slot, first:end].tolist() if first < end else []


class _GroupEnds:
    """What fails inside ends this process: see above."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if isinstance(error, Exception):
            logger.error("a rank failed; its group ends", exc_info=error)
            raise SystemExit(1) from error


@torch.inference_mode()
def follow(forward: Forward, messages: Iterable[RankStep | RankLogits]) -> None:
    """Of any other rank: compute its share of what rank 0 asks for."""
    hidden = torch.empty(0)
    for message in messages:
        if isinstance(message, RankLogits):
            forward.logits(hidden, message.places)
            continue
        plan = message.plan
        forward.apply(plan.admits, plan.extends)
        for row, tokens in zip(plan.rows, message.drawn, strict=True):
            if tokens:
                end = row.start + row.count
                forward.slots.tokens[row.slot, end - len(tokens) : end] = torch.tensor(tokens, dtype=torch.int32)
        hidden = forward.compute(plan.rows, all_hidden=message.all_hidden).hidden


def pages_message(size: CacheSize) -> RankPages:
    return RankPages(size.block_size, size.blocks, size.context)
