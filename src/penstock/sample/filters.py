"""Temperature, top_k, top_p, min_p and typical_p.

top_k, top_p and min_p each keep the tokens from some score upwards. Of a row's largest scores, in order, they are
decided by the first few: if what they keep ends inside the w largest, nothing beyond can matter, and the row is
*covered* by them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.flow import SamplingParams
from penstock.kernels.upload import upload

_LOWEST = torch.finfo(torch.float32).min  # below it is only -inf: banned
_TINY = torch.finfo(torch.float32).tiny


def enabled(params: SamplingParams, vocab_size: int) -> bool:
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0 or params.typical_p < 1.0


class FilterValues(NamedTuple):
    """The filters of a request, named as in `kernels.sampling_layout`. A filter that is off has a value that changes
    nothing."""

    top_k: int  # off: 0
    temperature: float
    top_p: float  # off: inf
    log_min_p: float  # off: -inf
    typical_p: float  # off: inf

    @classmethod
    def of(cls, params: SamplingParams, vocab_size: int) -> FilterValues:
        return cls(
            top_k=params.top_k if params.top_k < vocab_size else 0,
            temperature=max(params.temperature, _TINY),
            top_p=max(params.top_p, _TINY) if params.top_p < 1.0 else math.inf,
            log_min_p=math.log(params.min_p) if params.min_p else -math.inf,
            typical_p=params.typical_p if params.typical_p < 1.0 else math.inf,
        )


@dataclass(frozen=True, slots=True)
class Filters:
    """The filter values of n rows, each [n, 1]."""

    temperature: Tensor  # float32
    top_k: Tensor  # int64
    top_p: Tensor  # float32
    log_min_p: Tensor  # float32
    typical_p: Tensor  # float32
    any_unlimited: bool  # a row has top_p without top_k: it cuts the mass of the whole vocabulary
    any_typical: bool

    @classmethod
    def of(cls, params: list[SamplingParams], vocab_size: int, device: torch.device) -> Filters:
        def column(values: list[float]) -> Tensor:
            return upload(values, device, np.float32)[:, None]

        rows = [FilterValues.of(p, vocab_size) for p in params]
        return cls(
            temperature=column([row.temperature for row in rows]),
            top_k=upload([row.top_k for row in rows], device)[:, None],
            top_p=column([row.top_p for row in rows]),
            log_min_p=column([row.log_min_p for row in rows]),
            typical_p=column([row.typical_p for row in rows]),
            any_unlimited=any(row.top_p < math.inf and not row.top_k for row in rows),
            any_typical=any(row.typical_p < math.inf for row in rows),
        )

    def pick(self, rows: Tensor) -> Filters:
        return replace(
            self,
            temperature=self.temperature[rows],
            top_k=self.top_k[rows],
            top_p=self.top_p[rows],
            log_min_p=self.log_min_p[rows],
            typical_p=self.typical_p[rows],
        )

    @property
    def are_cuts(self) -> Tensor:
        """[n, 1] bool: rows that top_p and min_p alone filter. See `draw.by_rejection`."""
        return (self.top_k == 0) & (self.typical_p == math.inf)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The w likeliest tokens of n rows, less those filtered out."""

    tokens: Tensor  # [n, w] int64
    scores: Tensor  # [n, w] float32: logits by temperature, -inf for tokens filtered out
    covered: Tensor  # [n] bool: whether that is all the filters leave of the row; if not, the rest means nothing


def candidates(logits: Tensor, filters: Filters, width: int) -> Candidates:
    """Filter `logits` [n, vocab]. With the whole vocabulary as `width` every row is covered."""
    top = logits.topk(min(width, logits.shape[1]), dim=-1)
    scores = scale(top.values, top.values[:, :1], filters.temperature)
    scores, covered = _cut(scores, top.indices, logits, filters)
    return Candidates(top.indices, _typical(scores, filters) if filters.any_typical else scores, covered)


def scale(logits: Tensor, largest: Tensor, temperature: Tensor) -> Tensor:
    """Logits by temperature, as differences to the largest: no temperature is so low that this overflows to NaN."""
    return torch.sub(logits, largest).div_(temperature)


def _cut(scores: Tensor, tokens: Tensor, logits: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
    """top_k, top_p, min_p on the largest scores [n, w] in falling order: what is left of them, and for which rows [n]
    that is all there is."""
    width = scores.shape[1]
    everything = width == logits.shape[1]
    unlimited = filters.top_k == 0
    last = torch.where(unlimited, width, filters.top_k).clamp_(max=width) - 1
    kept = scores >= scores.gather(1, last).clamp_(min=_LOWEST)
    covered = everything | unlimited | ~kept[:, -1:]  # is the mass that top_p starts from known?

    mass = torch.softmax(scores.masked_fill(~kept, -math.inf), dim=-1)
    if filters.any_unlimited and not everything:
        whole = torch.softmax(scale(logits, logits.gather(1, tokens[:, :1]), filters.temperature), dim=-1)
        mass = torch.where(unlimited, whole.gather(1, tokens), mass)
    before = mass.cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = 0.0
    last = (kept & (before < filters.top_p)).sum(dim=-1, keepdim=True).sub_(1).clamp_(min=0)
    threshold = torch.maximum(scores.gather(1, last), filters.log_min_p)  # the largest score is 0
    kept = scores >= threshold.clamp_(min=_LOWEST)
    covered = covered & (everything | ~kept[:, -1:])
    return scores.masked_fill_(~kept, -math.inf), covered[:, 0]


def _typical(scores: Tensor, filters: Filters) -> Tensor:
    logprobs = torch.log_softmax(scores, dim=-1)
    probs = logprobs.exp()
    entropy = -(logprobs * probs).nansum(dim=-1, keepdim=True)  # filtered out: -inf * 0
    surprise = (logprobs + entropy).abs()  # inf where filtered out
    nearest, order = surprise.sort(dim=-1)
    reached = probs.gather(1, order).cumsum(dim=-1)
    last = (reached < filters.typical_p).sum(dim=-1, keepdim=True).clamp_(max=scores.shape[1] - 1)
    return scores.masked_fill_(surprise > nearest.gather(1, last), -math.inf)
