"""What requests get of a draw beside the token."""

from __future__ import annotations

from dataclasses import dataclass, field

from penstock.sample.constraints import StepConstraints
from penstock.sample.inspect import InspectedDraw
from penstock.sample.logprobs import Logprobs


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Of the rows of a step that request any."""

    logprobs: Logprobs | None = None
    logprob_rows: list[int] = field(default_factory=list)  # the rows of `logprobs`
    constraints: StepConstraints | None = None  # of the constrained rows
    inspected: dict[int, InspectedDraw] = field(default_factory=dict)  # by row
