"""How long known answers take with prompt lookup: the proposer and both rules on how much is drafted are the engine's
own, steps cost what a table says. For `bench/lookup_bound.py`."""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from penstock.flow import Admit, Row, RowResult, SamplingParams, Submit
from penstock.flow.step_costs import StepCosts
from penstock.schedule.speculation import CreditSpeculation
from penstock.speculate.drafter import Drafter, count_kept
from penstock.speculate.lookup import PromptLookup

PARAMS = SamplingParams(temperature=0.0)


class Replay(NamedTuple):
    seconds: float  # in the unit of the costs
    steps: int
    drafted: int
    accepted: int


def replay(
    answers: Sequence[tuple[list[int], list[int]]], measured: Mapping[int, float], ends: Sequence[int]
) -> Replay:
    """Prompts and their answers, one after the other, behind the first token of each."""
    costs = StepCosts(measured)
    tokens = np.zeros((1, max(len(prompt) + len(answer) for prompt, answer in answers) + 1), np.int32)
    drafter, speculation = Drafter(PromptLookup(tokens), costs, tokens), CreditSpeculation(costs)
    seconds, steps, drafted, accepted = 0.0, 0, 0, 0
    for prompt, answer in answers:
        whole = prompt + answer
        budget = speculation.budget_for(Submit("replayed", prompt, PARAMS, 0, len(answer)))
        sequence: Any = SimpleNamespace(drafting=budget, pending=0)
        drafter.admit(Admit(0, prompt, len(prompt), PARAMS, 0, 0, tuple(ends), []))
        length = len(prompt) + 1
        tokens[0, :length] = whole[:length]
        while length < len(whole):
            most = min(speculation.most_drafts(sequence, 1), len(whole) - length - 1)
            row = Row(0, length - 1, 1, 1 + most)
            found = drafter.draft([row], lambda _, drafts: len(drafts)) if most else None
            drafts = [] if found is None else found.drafts[0]
            kept = 1
            if found is not None:
                (kept,) = counts = count_kept(found, whole[length : length + len(drafts) + 1])
                drafter.settle(found, counts)
            drawn = whole[length : length + kept]
            speculation.settle([sequence], [row], [RowResult(drawn, drafts=drafts)], None)
            tokens[0, length : length + kept] = drawn
            length += kept
            seconds, steps = seconds + costs.seconds(1 + len(drafts)), steps + 1
            drafted, accepted = drafted + len(drafts), accepted + kept - 1
    return Replay(seconds, steps, drafted, accepted)
