"""The distribution of one row after each stage of sampling, for the sampling lab.

A stage is the sampler's own code, run with all parameters that act later turned off. The last one is what it draws
from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.flow import Inspection, Stage
from penstock.kernels import sampling_layout
from penstock.kernels.sampling_layout import FILTERS, PENALTIES, TEMPERATURE
from penstock.sample.constraints import StepConstraints
from penstock.sample.masks import Bits, Floats
from penstock.sample.request_table import RequestTable
from penstock.sample.slot_request import SlotRequest


class StageInput(NamedTuple):
    """What acts on the model's logits up to and including a stage."""

    name: str
    on: bool  # the request enables it; if not, nothing changes
    draw_params: dict[str, float]  # the fields of `kernels.sampling_layout`
    allowed: Bits | None  # the mask, where `masked` is 1


# The probabilities [vocab] that are left after a stage.
Distribution = Callable[[StageInput], Floats]
# The model's logits [vocab] of a row, and how to compute its distributions.
Reader = Callable[[int, SlotRequest], tuple[Floats, Distribution]]


@dataclass(frozen=True, slots=True)
class InspectedDraw:
    """Distributions [vocab] after each stage."""

    logits: Floats  # the model's
    stages: list[tuple[str, bool, Floats]]  # name, whether the request enables it, probabilities
    top: int

    def inspection(self, drawn: int) -> Inspection:
        """`drawn` is the sampled token."""
        first, last = self.stages[0][2], self.stages[-1][2]
        count = min(self.top, len(first))
        shown = {drawn, *_largest(first, count), *_largest(last, min(count, int((last > 0).sum())))}
        tokens = sorted(shown, key=lambda token: (-float(self.logits[token]), token))
        return Inspection(
            tokens=tokens,
            logits=self.logits[tokens].tolist(),
            stages=[
                Stage(name, on, int((probs > 0).sum()), _entropy_bits(probs), probs[tokens].tolist())
                for name, on, probs in self.stages
            ],
            drawn=drawn,
        )


def inspect(
    requests: RequestTable,
    slots: Sequence[int],
    positions: Sequence[int],
    constraints: StepConstraints | None,
    read: Reader,
) -> dict[int, InspectedDraw]:
    """By row, of the rows whose draws are to be shown. Row r draws the token at `positions[r]`."""
    inspected = {}
    for row, top in requests.take_inspections(slots).items():
        request = requests.by_slot[slots[row]]
        logits, distribution = read(row, request)
        allowed = None if constraints is None else constraints.allowed_of(row)
        stages: list[tuple[str, bool, Floats]] = []
        for stage in _stages(request, positions[row], allowed, len(logits)):
            stages.append((stage.name, stage.on, distribution(stage) if stage.on else stages[-1][2]))
        inspected[row] = InspectedDraw(logits, stages, top)
    return inspected


def softmax(scores: Floats) -> Floats:
    """[vocab] -> [vocab], the largest score being finite"""
    weights = np.exp((scores - scores.max()).astype(np.float64))
    probs: Floats = (weights / weights.sum()).astype(np.float32)
    return probs


def _stages(request: SlotRequest, position: int, constraint: Bits | None, vocab_size: int) -> list[StageInput]:
    """In the order in which they act. `constraint`: what it allows at `position`."""
    whole = {**request.draw_params, "position": position}
    params = sampling_layout.without((TEMPERATURE, *FILTERS, *PENALTIES), {**whole, "num_biases": 0, "masked": 0})
    allowed: Bits | None = None
    stages = []

    def add(name: str, on: bool, *fields: str) -> None:
        params.update({field: whole[field] for field in fields})
        stages.append(StageInput(name, on, dict(params), allowed))

    add("model", True)
    add("logit_bias", bool(whole["num_biases"]), "num_biases")
    add("penalties", request.penalised, *(field.name for field in PENALTIES))
    own, before_min = request.params, request.before_min_tokens(position)
    # With a constraint, its mask applies min_tokens.
    bans_ends = own.min_tokens > 0 and before_min and own.constraint is None
    if request.masks is not None and request.masks.bans:
        params["masked"], allowed = 1, request.masks.allowed_bits(vocab_size, before_min)
    add("masks", bool(own.allowed_tokens or own.banned_tokens or bans_ends))
    if constraint is not None:
        params["masked"], allowed = 1, constraint
    add("constraint", constraint is not None)
    for field in (TEMPERATURE,) if own.greedy else (TEMPERATURE, *FILTERS):
        assert field.parameter is not None
        add(field.parameter.name, whole[field.name] != field.parameter.off, field.name)
    return stages


def _largest(probs: Floats, count: int) -> list[int]:
    largest: list[int] = np.argsort(-probs, kind="stable")[:count].tolist()
    return largest


def _entropy_bits(probs: Floats) -> float:
    return max(0.0, float(-(probs * np.log(probs.clip(min=1e-38))).sum()) / math.log(2))
