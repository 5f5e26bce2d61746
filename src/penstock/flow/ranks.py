"""The messages between rank 0 of a tensor-parallel group, which plans and draws, and each of the other ranks.

RankStart ──► load ──► RankLoaded ──► RankJoin ──► join the group, agree on KV pages ──► RankStep, RankLogits, …

Adapters come and go in the order of the steps: RankLoad ──► RankAdapter, while steps go on; then steps whose rows have
it; RankDrop.
"""

from __future__ import annotations

from typing import Any

from penstock.flow.adapter import Adapter
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


class RankJoin(Wire, frozen=True):
    """All ranks have loaded: now none waits long for the others to join the group."""


class RankStep(Wire, frozen=True):
    """Compute a step. Its rows are as they are computed, with drafts. What tokens they have is rank 0's to know: it
    hands them out (`kernels.rank_ops`)."""

    plan: StepPlan
    all_hidden: bool  # hidden states of all tokens are read, not only of those that tokens are drawn from


class RankLogits(Wire, frozen=True):
    """Compute the rank's part of the logits of these tokens of the last step."""

    places: list[int]


class RankSleep(Wire, frozen=True):
    """Give the memory of weights and KV pages back, once all ranks have saved their weights."""


class RankWake(Wire, frozen=True):
    """Take it again."""


class AdapterPlace(Wire, frozen=True):
    """Where an adapter goes in the memory of each GPU."""

    number: int  # of its row in the table
    extents: dict[int, tuple[int, int]]  # by layer or table: begin and size, as `forward.device_adapters` counts


class RankLoad(Wire, frozen=True):
    """Load the rank's share of an adapter beside the steps, and answer with RankAdapter."""

    adapter: Adapter
    place: AdapterPlace | None  # None: there is no memory that it has to be placed in


class RankDrop(Wire, frozen=True):
    """No step has rows of this adapter any more. It may not have been loaded."""

    name: str
    version: str


RankWork = RankStep | RankLogits | RankSleep | RankWake | RankLoad | RankDrop
ToRank = RankStart | RankJoin | RankWork


class RankAdapter(Wire, frozen=True):
    """The rank has its share of an adapter, or has failed to load it."""

    name: str
    version: str
    error: str | None


FromRank = RankLoaded | RankAdapter | Failure
