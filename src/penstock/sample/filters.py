"""Temperature, top_k, top_p, min_p and typical_p.

top_k, top_p and min_p each keep the tokens above a threshold. Mostly the w largest scores of a row decide it: if the
smallest kept score is among them, the row is *covered* and the rest of the vocabulary does not matter.
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

    top_k: Tensor  # int64
    temperature: Tensor  # float32
    top_p: Tensor  # float32
    log_min_p: Tensor  # float32
    typical_p: Tensor  # float32
    any_unlimited: bool  # a row has top_p without top_k: its mass is that of the whole vocabulary
    any_typical: bool

    @classmethod
    def of(cls, params: list[SamplingParams], vocab_size: int, device: torch.device) -> Filters:
        rows = [FilterValues.of(p, vocab_size) for p in params]
        columns = zip(FilterValues._fields, zip(*rows, strict=True), strict=True)
        return cls(
            **{name: upload(column, device, _dtype(name))[:, None] for name, column in columns},
            any_unlimited=any(row.top_p < math.inf and not row.top_k for row in rows),
            any_typical=any(row.typical_p < math.inf for row in rows),
        )

    @classmethod
    def stages(cls, params: SamplingParams, vocab_size: int, device: torch.device) -> list[tuple[str, bool, Filters]]:
        """One request's filters turned on one after the other, in the order in which they act: the name of the newest,
        whether the request enables it, and all so far."""
        every = cls.of([params], vocab_size, device)
        scaled = cls.of([SamplingParams(temperature=params.temperature)], vocab_size, device)
        with_top_k = replace(scaled, top_k=every.top_k)
        with_top_p = replace(with_top_k, top_p=every.top_p, any_unlimited=every.any_unlimited)
        with_min_p = replace(with_top_p, log_min_p=every.log_min_p)
        return [
            ("temperature", params.temperature != 1.0, scaled),
            ("top_k", 0 < params.top_k < vocab_size, with_top_k),
            ("top_p", params.top_p < 1.0, with_top_p),
            ("min_p", params.min_p > 0.0, with_min_p),
            ("typical_p", params.typical_p < 1.0, every),
        ]

    def pick(self, rows: Tensor) -> Filters:
        return replace(self, **{name: getattr(self, name)[rows] for name in FilterValues._fields})

    @property
    def least_score(self) -> Tensor:
        """[n, 1]: scores below it are filtered out, regardless of top_k and top_p. The largest score is 0."""
        return self.log_min_p

    @property
    def only_thresholds(self) -> Tensor:
        """[n, 1] bool: rows with no other filters than top_p and a least score. See `draw.by_rejection`."""
        return (self.top_k == 0) & (self.typical_p == math.inf)


def _dtype(name: str) -> type[np.generic]:
    return np.int64 if name == "top_k" else np.float32


@dataclass(frozen=True, slots=True)
class Candidates:
    """The w most likely tokens of n rows, without those filtered out."""

    tokens: Tensor  # [n, w] int64
    scores: Tensor  # [n, w] float32: logits by temperature, -inf for tokens filtered out
    covered: Tensor  # [n] bool: the filters keep no other tokens; where False, the scores mean nothing


def candidates(logits: Tensor, filters: Filters, width: int) -> Candidates:
    """Filter `logits` [n, vocab]. With the whole vocabulary as `width` every row is covered."""
    top = logits.topk(min(width, logits.shape[1]), dim=-1)
    scores = scale(top.values, top.values[:, :1], filters.temperature)
    scores, covered = _threshold(scores, top.indices, logits, filters)
    return Candidates(top.indices, _typical(scores, filters) if filters.any_typical else scores, covered)


def scale(logits: Tensor, largest: Tensor, temperature: Tensor) -> Tensor:
    """Logits divided by temperature, as differences to the largest: low temperatures do not overflow to NaN."""
    return torch.sub(logits, largest).div_(temperature)


def _threshold(scores: Tensor, tokens: Tensor, logits: Tensor, filters: Filters) -> tuple[Tensor, Tensor]:
    """top_k, top_p and min_p on the largest scores [n, w] in falling order: the kept ones, and which rows [n] they
    cover."""
    width = scores.shape[1]
    everything = width == logits.shape[1]
    unlimited = filters.top_k == 0
    last = torch.where(unlimited, width, filters.top_k).clamp_(max=width) - 1
    kept = scores >= scores.gather(1, last).clamp_(min=_LOWEST)
    covered = everything | unlimited | ~kept[:, -1:]  # whether the mass that top_p starts from is known

    mass = torch.softmax(scores.masked_fill(~kept, -math.inf), dim=-1)
    if filters.any_unlimited and not everything:
        whole = torch.softmax(scale(logits, logits.gather(1, tokens[:, :1]), filters.temperature), dim=-1)
        mass = torch.where(unlimited, whole.gather(1, tokens), mass)
    before = mass.cumsum(dim=-1).roll(1, dims=-1)
    before[:, 0] = 0.0
    last = (kept & (before < filters.top_p)).sum(dim=-1, keepdim=True).sub_(1).clamp_(min=0)
    threshold = torch.maximum(scores.gather(1, last), filters.least_score)
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
