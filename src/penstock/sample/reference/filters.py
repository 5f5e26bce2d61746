"""Temperature, top_k, top_p, min_p and typical_p.

top_k, top_p and min_p each keep the tokens above a threshold. Mostly the w largest scores of a row decide it: if the
smallest kept score is among them, the row is *covered* and the rest of the vocabulary does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from penstock.kernels.sampling_layout import FILTERS, TEMPERATURE
from penstock.kernels.upload import upload

_LOWEST = torch.finfo(torch.float32).min  # below it is only -inf: banned
_FIELDS = (TEMPERATURE, *FILTERS)
_DTYPES = {"int32": np.int64, "float32": np.float32}


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
    def of(cls, params: Sequence[Mapping[str, float]], device: torch.device) -> Filters:
        """`params`: the draw parameters of each row."""
        return cls(
            **{
                field.name: upload([row[field.name] for row in params], device, np.dtype(_DTYPES[field.type]))[:, None]
                for field in _FIELDS
            },
            any_unlimited=any(row["top_p"] < math.inf and not row["top_k"] for row in params),
            any_typical=any(row["typical_p"] < math.inf for row in params),
        )

    def pick(self, rows: Tensor) -> Filters:
        return replace(self, **{name: getattr(self, name)[rows] for name in (field.name for field in _FIELDS)})

    @property
    def least_score(self) -> Tensor:
        """[n, 1]: scores below it are filtered out, regardless of top_k and top_p. The largest score is 0."""
        return self.log_min_p

    @property
    def only_thresholds(self) -> Tensor:
        """[n, 1] bool: rows with no other filters than top_p and a least score. See `draw.by_rejection`."""
        return (self.top_k == 0) & (self.typical_p == math.inf)


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
