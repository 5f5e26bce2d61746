"""The protocol of proposers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from penstock.flow import Admit


class DraftRow(NamedTuple):
    """A sequence that may get drafts: `length` of its tokens are known."""

    slot: int
    length: int
    most: int  # tokens to propose


class Proposal(NamedTuple):
    """Tokens that may follow those of a sequence. `kind` tells proposals apart that are right more or less often: a
    small number, the meaning of which is the proposer's own."""

    tokens: list[int]
    kind: int = 0


class Proposer(Protocol):
    @property
    def kinds(self) -> Sequence[float]:
        """By kind: how likely a token is right, before anything has been measured."""

    def admit(self, admit: Admit) -> None:
        """Another sequence gets the slot, which still has the tokens of the one before."""

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """For each row. The known tokens are in the slots."""
