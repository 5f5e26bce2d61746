"""The messages between rank 0 of a tensor-parallel group, which plans and draws, and each of the other ranks.

RankStart ──► load ──► RankLoaded ──► RankPages ──► join the group ──► RankStep, RankLogits, RankStep, …
"""

from __future__ import annotations

from typing import Any

from penstock.flow.messages import Failure, Wire
from penstock.flow.step import StepPlan


class RankStart(Wire, frozen=True):
    """The first message to a rank's process."""

    settings: dict[str, Any]  # from `settings.to_wire`
    rank: int
    folder: str  # private: where the ranks meet


class RankLoaded(Wire, frozen=True):
    """Its share of the weights is in memory."""

    weights_bytes: int


class RankPages(Wire, frozen=True):
    """The KV pages of every rank, as rank 0 has sized them. Allocate them and join the group."""

    block_size: int
    blocks: tuple[int, ...]  # [cache groups]
    context: int


class RankStep(Wire, frozen=True):
    """Compute a step. Its rows are as they are computed, with drafts."""

    plan: StepPlan
    # [rows]: the tokens of each row that no Admit has brought, since rank 0 has drawn or drafted them. They are the
    # last of the row.
    drawn: list[list[int]]
    all_hidden: bool  # hidden states of all tokens are read, not only of those that tokens are drawn from


class RankLogits(Wire, frozen=True):
    """Compute the rank's part of the logits of these tokens of the last step."""

    places: list[int]


ToRank = RankStart | RankPages | RankStep | RankLogits
FromRank = RankLoaded | Failure
