"""How many tokens may be drafted for a sequence: as many as it can pay for.

A sequence has a credit, in units of the time in which a step draws one token. Drafts cost the time by which they
lengthen the step, right drafts earn the tokens they save, and every output token earns a little. So a sequence whose
drafts are never right loses at most `FIRST_CREDIT` and `TOKEN_CREDIT` per token against one without drafts. The
backend, which sees the proposals, decides whether a draft is worth its price (`speculate.draft_length`).
"""

from __future__ import annotations

from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from penstock.flow import Row, RowResult, Submit
from penstock.flow.step_costs import StepCosts

if TYPE_CHECKING:
    from penstock.schedule.sequence import Sequence

MOST_DRAFTS = 15  # of a row: with the newest token they fill tiles of the kernels
FIRST_CREDIT = 0.4  # one draft of a single stream on a CPU
TOKEN_CREDIT = 0.02
MOST_CREDIT = 6.0


@dataclass(slots=True)
class DraftBudget:
    """Of one sequence."""

    credit: float = FIRST_CREDIT
    price: float = 0.0  # of the cheapest drafts, when a step was last planned
    reserved: int = 0  # drafts of the row in flight
    drafted: int = 0  # tokens, so far
    accepted: int = 0  # of those, right ones

    @property
    def waits(self) -> bool:
        """Whether the next row waits for the one in flight: that one has drafts, or the next one may."""
        return self.reserved > 0 or self.credit >= self.price


class Speculation(Protocol):
    """Decides how many tokens may be drafted."""

    def budget_for(self, message: Submit) -> DraftBudget | None:
        """For a new sequence; None: none of its tokens are drafted."""

    def most_drafts(self, sequence: Sequence, rows: int) -> int:
        """Of its next row, in a step in which about `rows` sequences draw a token."""

    def settle(
        self,
        sequences: Items[Sequence],
        rows: Items[Row],
        results: Items[RowResult],
        seconds: float | None,
        ahead: bool = False,
    ) -> None:
        """A step is over; None: how long it took is not known. `ahead`: it was planned ahead."""

    def add_audit(self, tokens: int, mismatches: int) -> None:
        """Tokens were drawn again without drafts."""

    def stats(self) -> dict[str, Any]: ...


class CreditSpeculation:
    """Implements `Speculation`."""

    def __init__(self, costs: StepCosts, *, plans_ahead: bool = False) -> None:
        """`plans_ahead`: whether steps are planned before the last one is settled. A sequence that may get drafts
        waits for that, and pays for the time in which the device does."""
        if plans_ahead:
            costs.plan_ahead()
        self._costs = costs
        self._drafted = [0] * MOST_DRAFTS  # by position in the draft, since the start
        self._accepted = [0] * MOST_DRAFTS
        self._steps = 0  # with drafts
        self._saved_s = 0.0
        self._audited = self._mismatches = 0  # tokens
        # By rows, at a scale of costs and a time of waiting.
        self._known_prices: dict[int, tuple[tuple[float, float], list[float]]] = {}

    def budget_for(self, message: Submit) -> DraftBudget | None:
        return DraftBudget() if message.params.speculation and message.task == "generate" else None

    def most_drafts(self, sequence: Sequence, rows: int) -> int:
        budget = sequence.drafting
        if budget is None:
            return 0
        prices = self._prices(rows)
        # Drafts that cost more than they save if all are right are never made.
        affordable = [drafts for drafts, price in enumerate(prices, 1) if price <= budget.credit and price < drafts]
        budget.price = min((price for drafts, price in enumerate(prices, 1) if price < drafts), default=float("inf"))
        return 0 if sequence.pending else max(affordable, default=0)

    def _prices(self, rows: int) -> list[float]:
        """Of 1, 2, ... drafts of one row: in units of the time per token."""
        costs = self._costs
        at = costs.scale, costs.wait_s
        if (known := self._known_prices.get(rows)) is None or known[0] != at:
            waiting = costs.waiting(rows)  # the others wait, too
            known = (at, [waiting + rows * costs.added(rows, n) for n in range(1, MOST_DRAFTS + 1)])
            self._known_prices[rows] = known
        return known[1]

    def settle(
        self,
        sequences: Items[Sequence],
        rows: Items[Row],
        results: Items[RowResult],
        seconds: float | None,
        ahead: bool = False,
    ) -> None:
        drafted = sum(result.drafted for result in results)
        tokens, price = sum(row.count for row in rows), 0.0
        if seconds is not None and tokens == len(rows):
            self._costs.observe(tokens, drafted, seconds, ahead)
        if drafted:
            self._steps += 1
            drawing = sum(row.draws > 0 for row in rows)
            added = self._costs.added(tokens, drafted)
            price = added * drawing / drafted
            accepted = sum(len(result.tokens) - 1 for result in results if result.drafted)
            self._saved_s += self._costs.seconds(tokens) * (accepted / drawing - added)
        waiting = self._waiting_price(sequences, tokens)
        for sequence, result in zip(sequences, results, strict=True):
            budget, count = sequence.drafting, len(result.tokens)
            if budget is None or not count:
                continue
            earned = TOKEN_CREDIT * count - (waiting if budget.reserved else 0.0)
            budget.reserved = 0
            if result.drafted:
                earned += count - 1 - price * result.drafted
                self._count(budget, result.drafted, count - 1)
            budget.credit = min(MOST_CREDIT, budget.credit + earned)

    def _waiting_price(self, sequences: Items[Sequence], tokens: int) -> float:
        """What each sequence that waited to get drafts pays for all that waited with it."""
        if not self._costs.wait_s:
            return 0.0
        waited = sum(one.drafting is not None and one.drafting.reserved > 0 for one in sequences)
        return self._costs.waiting(tokens) * len(sequences) / max(1, waited)

    def add_audit(self, tokens: int, mismatches: int) -> None:
        self._audited += tokens
        self._mismatches += mismatches

    def stats(self) -> dict[str, Any]:
        """Totals since the start."""
        return {
            "steps": self._steps,
            "drafted": sum(self._drafted),
            "accepted": sum(self._accepted),
            "saved_s": round(self._saved_s, 6),
            "cost_scale": round(self._costs.scale, 3),
            "audited": self._audited,
            "mismatches": self._mismatches,
            "drafted_by_position": self._drafted.copy(),
            "accepted_by_position": self._accepted.copy(),
        }

    def _count(self, budget: DraftBudget, drafted: int, accepted: int) -> None:
        budget.drafted += drafted
        budget.accepted += accepted
        for position in range(drafted):
            self._drafted[position] += 1
        for position in range(accepted):
            self._accepted[position] += 1
