"""The result of sampling a step."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from penstock.sample.constraints import StepConstraints
from penstock.sample.inspect import InspectedDraw
from penstock.sample.logprobs import Logprobs


@dataclass(frozen=True, slots=True)
class Draws:
    """Drawn tokens, and the log-probabilities of the rows that request them. On the device."""

    tokens: Tensor  # [rows] int64
    logprobs: Logprobs | None = None
    logprob_rows: list[int] = field(default_factory=list)  # the rows of `logprobs`
    constraints: StepConstraints | None = None  # of the constrained rows
    inspected: dict[int, InspectedDraw] = field(default_factory=dict)  # by row
