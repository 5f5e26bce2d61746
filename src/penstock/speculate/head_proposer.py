"""Proposers that draft from hidden states of the target: chain heads (EAGLE, MTP) and Medusa heads, in numpy.

The backend gives them the states of each position once it is known to be right (`observe`). A sequence that begins with
cached blocks has no states of those: its entries begin with the first position that was computed, which rotary
positions allow, since only their distances matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from penstock.flow import Admit
from penstock.kernels.arrays import Array
from penstock.speculate.heads.chain import ChainHead, HeadSequence
from penstock.speculate.heads.medusa_heads import MedusaHeads
from penstock.speculate.proposer import DraftRow, Proposal, Proposer

FIRST_RATE = 0.6  # how often a draft is right, before anything has been measured


class StateProposer(Proposer, Protocol):
    taps: tuple[int, ...]  # layers of the target whose inputs it reads; empty: hidden states after the final norm

    def observe(self, slot: int, start: int, states: Array) -> None:
        """The target's states at positions start, start + 1, ... of the slot's sequence, [n, hidden] or
        [n, taps * hidden]. Positions of drafts that were wrong are left out, and come again with other tokens."""


class _Entries:
    """Of one sequence: entries of the head, and states that wait for their next token."""

    def __init__(self, head: ChainHead) -> None:
        self.sequence = HeadSequence(head.spec)
        self.first = 0  # position of entry 0
        self.waiting: list[Array] = []  # states behind the entries, [n, width] each
        self.end = -1  # position behind the last state; -1: nothing seen yet


class ChainHeadProposer:
    """Implements `StateProposer`."""

    kinds = (FIRST_RATE,)

    def __init__(self, head: ChainHead, tokens: Array) -> None:
        """`tokens` [slots, context] int32: the sequences."""
        self.taps = head.spec.taps
        self._head, self._tokens = head, tokens
        self._entries: dict[int, _Entries] = {}  # by slot

    def admit(self, admit: Admit) -> None:
        self._entries[admit.slot] = _Entries(self._head)

    def observe(self, slot: int, start: int, states: Array) -> None:
        entries = self._entries[slot]
        if entries.end != start:  # the first ones, or some are missing: begin again
            entries = self._entries[slot] = _Entries(self._head)
            entries.first = start
        entries.waiting.append(states.copy())
        entries.end = start + len(states)

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        return [Proposal(self._propose(row)) for row in rows]

    def _propose(self, row: DraftRow) -> list[int]:
        entries = self._entries[row.slot]
        if entries.end != row.length - 1:  # the newest token has not been computed yet; all before it must have been
            return []
        if entries.waiting:
            states = np.concatenate(entries.waiting)
            begin = entries.first + entries.sequence.length + 1
            tokens = self._tokens[row.slot, begin : begin + len(states)]
            self._head.extend(entries.sequence, tokens, states)
            entries.waiting.clear()
        return self._head.draft(entries.sequence, row.most)


class MedusaProposer:
    """Implements `StateProposer`."""

    kinds = (FIRST_RATE,)
    taps: tuple[int, ...] = ()

    def __init__(self, heads: MedusaHeads) -> None:
        self._heads = heads
        self._last: dict[int, tuple[int, Array]] = {}  # by slot: position behind the last state, and the state

    def admit(self, admit: Admit) -> None:
        self._last.pop(admit.slot, None)

    def observe(self, slot: int, start: int, states: Array) -> None:
        self._last[slot] = (start + len(states), states[-1].copy())

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        return [Proposal(self._propose(row)) for row in rows]

    def _propose(self, row: DraftRow) -> list[int]:
        end, state = self._last.get(row.slot, (-1, None))
        return [] if state is None or end != row.length - 1 else self._heads.draft(state, row.most)
