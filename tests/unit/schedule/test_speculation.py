"""What drafts a sequence may have, and what it loses at worst."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from penstock.flow import Row, RowResult, SamplingParams, Submit
from penstock.flow.step_costs import StepCosts
from penstock.schedule.speculation import FIRST_CREDIT, TOKEN_CREDIT, CreditSpeculation, DraftBudget

COSTS = StepCosts({1: 1.0, 2: 1.3, 4: 1.9, 8: 3.1})


def submit(**params: Any) -> Submit:
    return Submit("a", [1], SamplingParams(**params), 0, 9)


def sequence(budget: DraftBudget | None) -> Any:
    return SimpleNamespace(drafting=budget, pending=0)


def decode(speculation: CreditSpeculation, tokens: int, accepts: bool, rows: int = 1) -> tuple[float, int]:
    """`rows` alike sequences: seconds they take for their tokens, and steps, each draft right or each wrong."""
    own = [sequence(speculation.budget_for(submit())) for _ in range(rows)]
    seconds, steps, output = 0.0, 0, 0
    while output < tokens:
        (drafts,) = {speculation.most_drafts(one, rows) for one in own}
        count = 1 + drafts if accepts else 1
        plan = [Row(slot, 5, 1, 1 + drafts) for slot in range(rows)]
        speculation.settle(own, plan, [RowResult([7] * count, drafts=[7] * drafts) for _ in plan], None)
        seconds += COSTS.seconds(rows + rows * drafts)
        output += count
        steps += 1
    return seconds, steps


@pytest.mark.parametrize("tokens", [40, 100, 1000])
def test_if_no_draft_is_ever_right_it_loses_little(tokens: int) -> None:
    seconds, _ = decode(CreditSpeculation(COSTS), tokens, accepts=False)
    plain = tokens * COSTS.seconds(1)
    assert plain < seconds <= plain + FIRST_CREDIT + TOKEN_CREDIT * tokens


def test_the_bound_holds_in_a_batch() -> None:
    seconds, _ = decode(CreditSpeculation(COSTS), 500, accepts=False, rows=4)
    assert seconds <= 500 * COSTS.seconds(4) * 1.03


@pytest.mark.parametrize("finds", [True, False])
@pytest.mark.parametrize("rows", [1, 4])
def test_waiting_for_drafts_costs_as_little(finds: bool, rows: int) -> None:
    """With look-ahead a sequence that may get drafts keeps the device waiting, even if nothing is proposed."""
    costs = StepCosts({1: 1.0, 2: 1.05, 4: 1.1, 8: 1.2})
    speculation = CreditSpeculation(costs, plans_ahead=True)
    costs.wait_s = 0.2
    own = [sequence(speculation.budget_for(submit())) for _ in range(rows)]
    seconds, waits = 0.0, 0
    for _ in range(1000):
        waiting = [one for one in own if one.drafting.waits]
        for one in own:
            one.pending = one not in waiting
            one.drafting.reserved = speculation.most_drafts(one, rows)
        drafts = [one.drafting.reserved if finds else 0 for one in own]
        plan = [Row(slot, 5, 1, 1 + one.drafting.reserved) for slot, one in enumerate(own)]
        results = [RowResult([7], drafts=[7] * count) for count in drafts]
        seconds += costs.seconds(rows + sum(drafts)) + (0.2 if waiting else 0.0)
        waits += bool(waiting)
        speculation.settle(own, plan, results, None)
    assert waits > 20, "it tries again and again"
    assert seconds <= 1000 * costs.seconds(rows) * (1 + TOKEN_CREDIT) + rows * (FIRST_CREDIT + 0.2)


def test_if_all_drafts_are_right_there_are_many() -> None:
    speculation = CreditSpeculation(COSTS)
    _, steps = decode(speculation, 400, accepts=True)
    assert steps < 40
    stats = speculation.stats()
    assert stats["drafted"] == stats["accepted"] > 300
    assert stats["accepted_by_position"][0] >= stats["accepted_by_position"][-1] > 0


def test_no_drafts_where_a_token_of_a_step_costs_as_much_as_a_token() -> None:
    speculation = CreditSpeculation(StepCosts({1: 1.0, 2: 2.0}))
    own = sequence(speculation.budget_for(submit()))
    assert speculation.most_drafts(own, 8) == 0
    assert not own.drafting.waits, "so it is planned ahead"


def test_who_gets_none() -> None:
    speculation = CreditSpeculation(COSTS)
    assert speculation.budget_for(submit(speculation=False)) is None
    assert speculation.budget_for(Submit("a", [1], SamplingParams(), 0, 0, task="embed")) is None
    own = sequence(speculation.budget_for(submit()))
    assert speculation.most_drafts(own, 1) > 0
    own.pending = 1  # planned ahead: its newest token is not known
    assert speculation.most_drafts(own, 1) == 0
