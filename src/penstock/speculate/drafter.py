"""Drafts of a step: proposed for its rows, cut to what pays off and what constraints allow, written to the slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from penstock.flow import Admit, Row
from penstock.flow.step_costs import StepCosts
from penstock.kernels.arrays import Array
from penstock.speculate.draft_length import Rates, choose_lengths
from penstock.speculate.proposer import DraftRow, Proposer

AllowedLength = Callable[[int, list[int]], int]  # slot and drafts -> how many of them its constraint allows


class DraftedRows(NamedTuple):
    """Rows of a plan as they are computed."""

    rows: list[Row]  # with their drafts: a row draws `draws` tokens, from the logits of its last positions
    drafts: dict[int, list[int]]  # by slot
    kinds: dict[int, int]  # of their proposals, by slot


class Drafter:
    """One per backend. An Admit replaces what it holds for the slot."""

    def __init__(self, proposer: Proposer, costs: StepCosts, tokens: Array, most_draws: int | None = None) -> None:
        """`tokens` [slots, context] int32: the sequences. Drafts are written there. `most_draws`: of a step with
        drafts."""
        self._proposer = proposer
        self._costs = costs
        self._tokens = tokens
        self._most_draws = most_draws
        self._rates = Rates(proposer.kinds)  # of all sequences
        self._slot_rates: dict[int, Rates] = {}
        self._end_tokens: dict[int, frozenset[int]] = {}  # by slot

    def admit(self, admit: Admit) -> None:
        """Before its tokens are written to the slot."""
        self._proposer.admit(admit)
        self._slot_rates[admit.slot] = Rates(self._proposer.kinds)
        self._end_tokens[admit.slot] = frozenset(admit.end_tokens)

    def draft(self, rows: Sequence[Row], allowed_length: AllowedLength) -> DraftedRows | None:
        """None: the step has no drafts."""
        wanted = [DraftRow(row.slot, row.start + row.count, row.draws - 1) for row in rows if row.draws > 1]
        num_drawing = sum(row.draws > 0 for row in rows)
        most = None if self._most_draws is None else max(0, self._most_draws - num_drawing)
        if self._proposer.computes:
            wanted = self._worthwhile(wanted, num_drawing, most)
        if not wanted:
            return None
        proposals = [
            (row, self._cut(row.slot, proposal.tokens[: row.most], allowed_length), proposal.kind)
            for row, proposal in zip(wanted, self._proposer.propose(wanted), strict=True)
        ]
        lengths = choose_lengths(
            self._costs,
            num_drawing,
            [(self._slot_rates[row.slot].rate(kind, self._rates), len(tokens)) for row, tokens, kind in proposals],
            most,
        )
        drafts: dict[int, list[int]] = {}
        kinds: dict[int, int] = {}
        for (row, tokens, kind), length in zip(proposals, lengths, strict=True):
            if length:
                drafts[row.slot], kinds[row.slot] = tokens[:length], kind
                self._tokens[row.slot, row.length : row.length + length] = tokens[:length]
        if not drafts:
            return None
        return DraftedRows([with_drafts(row, len(drafts.get(row.slot, ()))) for row in rows], drafts, kinds)

    def _worthwhile(self, rows: Sequence[DraftRow], num_drawing: int, most: int | None) -> list[DraftRow]:
        """With no more tokens to propose than are likely to be worth their price; before there are any, all proposals
        are of the first kind."""
        chances = [(self._slot_rates[row.slot].rate(0, self._rates), row.most) for row in rows]
        lengths = choose_lengths(self._costs, num_drawing, chances, most)
        return [row._replace(most=most) for row, most in zip(rows, lengths, strict=True) if most]

    def settle(self, drafted: DraftedRows, kept: Sequence[int]) -> None:
        """`kept` [rows]: how many draws of each row count."""
        for row, count in zip(drafted.rows, kept, strict=True):
            if row.draws > 1:
                kind = drafted.kinds[row.slot]
                for rates in (self._rates, self._slot_rates[row.slot]):
                    rates.add(kind, row.draws - 1, count - 1)

    def _cut(self, slot: int, tokens: list[int], allowed_length: AllowedLength) -> list[int]:
        """Up to a token that would end the sequence, since nothing follows it, or that its constraint forbids."""
        ends = self._end_tokens[slot]
        tokens = next((tokens[:place] for place, token in enumerate(tokens) if token in ends), tokens)
        return tokens[: allowed_length(slot, tokens)] if tokens else tokens


def draws_at(rows: Sequence[Row]) -> tuple[list[int], list[int]]:
    """Slot and position of every token that the rows draw."""
    found = [(row.slot, row.start + row.count - back) for row in rows for back in reversed(range(row.draws))]
    return [slot for slot, _ in found], [position for _, position in found]


def count_kept(drafted: DraftedRows, tokens: Sequence[int]) -> list[int]:
    """[rows] how many draws of each row count: those up to the first that differs from its draft, and that one.
    `tokens` are those of all draws."""
    kept, place = [], 0
    for row in drafted.rows:
        drafts = drafted.drafts.get(row.slot, []) if row.draws else []
        wrong = (index for index, draft in enumerate(drafts) if tokens[place + index] != draft)
        kept.append(next(wrong, row.draws - 1) + 1)
        place += row.draws
    return kept


def with_drafts(row: Row, drafts: int) -> Row:
    """As it is computed: with this many drafts."""
    return row if row.draws <= 1 else Row(row.slot, row.start, row.count + drafts, 1 + drafts)


def without_drafts(rows: list[Row]) -> list[Row]:
    """The rows of a step in which nothing is drafted."""
    return [with_drafts(row, 0) for row in rows] if any(row.draws > 1 for row in rows) else rows


def without_wrong_drafts(rows: Sequence[Row], kept: Sequence[int]) -> tuple[list[Row], list[int]]:
    """Rows of a step as they count: without the drafts that were wrong; and the packed tokens that are left. `kept`
    [rows]: how many draws of each count."""
    counted: list[Row] = []
    places: list[int] = []
    first = 0
    for row, count in zip(rows, kept, strict=True):
        right = row.count - (row.draws - count)
        counted.append(Row(row.slot, row.start, right, count))
        places += range(first, first + right)
        first += row.count
    return counted, places
