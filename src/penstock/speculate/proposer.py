"""The protocol of proposers.

setting ──registry.prepare──► DraftSource, before the target is loaded ──build──► Proposer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from penstock.flow import Admit, Row
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.draw_table import DrawTable
from penstock.kernels.cpu.program import Pool
from penstock.kernels.interface import Pages
from penstock.kernels.weight import Weight
from penstock.store.spec import ModelSpec

Taps = tuple[int, ...]  # layers before which the residual stream is read; (): hidden states after the final norm


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

    @property
    def computes(self) -> bool:
        """Whether each proposed token takes time, so that no more are asked for than are worth it."""

    @property
    def taps(self) -> Taps | None:
        """The states of the target that it reads; None: none."""

    def admit(self, admit: Admit) -> None:
        """Another sequence gets the slot, which still has the tokens of the one before."""

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        """A step has computed these rows, without positions of drafts that were wrong: the target's states there,
        [tokens, hidden] or [tokens, taps * hidden]. Called after each step if there are `taps`."""

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        """For each row. The known tokens are in the slots."""


@dataclass(frozen=True, slots=True)
class Host:
    """What a proposer shares with the native backend that it drafts for."""

    spec: ModelSpec  # of the target, as the next two
    embedding: Weight
    head: Weight
    context: int
    threads: int
    pool: Pool
    step_tokens: int
    tokens: Array  # [slots, context + 1] int32: the sequences
    block_size: int
    block_table: Array  # [slots, blocks] int32: of the layers with full attention
    allocate_pages: Callable[[ModelSpec], list[Pages]]  # by layer, for all block ids
    draw_table: Callable[[list[int], list[int]], DrawTable]  # slots and positions: draws as their requests ask for


class DraftSource(Protocol):
    """A proposer of which all is read that can be wrong, before the target is loaded."""

    @property
    def taps(self) -> Taps | None:
        """As those of its proposer."""

    @property
    def layers(self) -> ModelSpec | None:
        """Of the layers that keep keys and values, under the target's block ids; None: it keeps none."""

    def build(self, host: Host) -> Proposer: ...
