"""The distribution of one row after each stage of sampling, for the sampling lab.

Every stage is the sampler's own code: filters run over the whole vocabulary, with the later ones turned off. The result
is what a sampler draws from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.flow import Inspection, SamplingParams, Stage
from penstock.sample import penalties
from penstock.sample.adjustments import Adjustments
from penstock.sample.constraints import StepConstraints
from penstock.sample.filters import Filters, candidates
from penstock.sample.slot_request import SlotRequest


@dataclass(frozen=True, slots=True)
class InspectedDraw:
    """Distributions [vocab] after each stage. On the device until `inspection`."""

    logits: Tensor  # the model's
    stages: list[tuple[str, bool, Tensor]]  # name, whether the request enables it, probabilities
    top: int

    def inspection(self, drawn: int) -> Inspection:
        """Waits for the device. `drawn` is the sampled token."""
        first, last = self.stages[0][2], self.stages[-1][2]
        count = min(self.top, len(first))
        final = last.topk(min(count, int((last > 0).sum())))
        shown = {drawn, *first.topk(count).indices.tolist(), *final.indices.tolist()}
        tokens = sorted(shown, key=lambda token: (-float(self.logits[token]), token))
        at = torch.tensor(tokens, device=first.device)
        return Inspection(
            tokens=tokens,
            logits=self.logits[at].tolist(),
            stages=[
                Stage(name, on, int((probs > 0).sum()), _entropy_bits(probs), probs[at].tolist())
                for name, on, probs in self.stages
            ],
            drawn=drawn,
        )


def inspect(
    logits: Tensor,
    request: SlotRequest,
    position: int,
    slot_tokens: Tensor,
    top: int,
    constraints: StepConstraints | None = None,
) -> InspectedDraw:
    """`logits` [vocab] float32, the model's; `constraints` are of this row alone; the rest as in samplers."""
    vocab_size, params = len(logits), request.params
    work = logits.clone()[None]
    before_min = request.before_min_tokens(position)
    adjustments = Adjustments.of([request], [before_min], vocab_size, logits.device)
    stages: list[tuple[str, bool, Tensor]] = [("model", True, torch.softmax(work[0], dim=-1))]

    def after(name: str, on: bool) -> None:
        stages.append((name, on, torch.softmax(work[0], dim=-1) if on else stages[-1][2]))

    if adjustments.masks is not None:
        adjustments.masks.add_bias(work)
    after("logit_bias", bool(params.logit_bias))
    if adjustments.penalties is not None:
        adjustments.penalties.apply(work, slot_tokens, torch.tensor([position], device=logits.device), position)
    after("penalties", penalties.enabled(params))
    if adjustments.masks is not None:
        adjustments.masks.ban(work)
    # With a constraint, `constraints` applies min_tokens.
    bans_ends = params.min_tokens > 0 and before_min and params.constraint is None
    after("masks", bool(params.allowed_tokens or params.banned_tokens or bans_ends))
    if constraints is not None:
        constraints.apply(work)
    after("constraint", constraints is not None)
    for name, on, probs in _filter_stages(work, params, vocab_size):
        stages.append((name, on, probs if on else stages[-1][2]))
    return InspectedDraw(logits, stages, top)


def _filter_stages(logits: Tensor, params: SamplingParams, vocab_size: int) -> Sequence[tuple[str, bool, Tensor]]:
    if params.greedy:
        largest = torch.zeros_like(logits[0])
        largest[logits[0].argmax()] = 1.0
        return [("temperature", True, largest)]
    stages = Filters.stages(params, vocab_size, logits.device)
    return [(name, on, distribution(logits, filters)) for name, on, filters in stages]


def distribution(logits: Tensor, filters: Filters) -> Tensor:
    """[1, vocab] -> [vocab]: probabilities after the filters."""
    found = candidates(logits, filters, logits.shape[1])
    probs = torch.softmax(found.scores[0], dim=-1)
    return torch.zeros_like(logits[0]).scatter_(0, found.tokens[0], probs)


def _entropy_bits(probs: Tensor) -> float:
    return max(0.0, float(-(probs * probs.clamp_min(1e-38).log()).sum()) / math.log(2))
