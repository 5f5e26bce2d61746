"""Draw parameters without a slot."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.flow import SamplingParams
from penstock.kernels import sampling_layout
from penstock.sample.reference.filters import Filters


def draw_params(params: SamplingParams, vocab: int, **others: float) -> dict[str, float]:
    """Of a request without biases or masks; fields that do not follow from its parameters are 0, or as given."""
    fields = dict.fromkeys((field.name for field in sampling_layout.FIELDS), 0)
    return {**fields, **sampling_layout.values(params, vocab), **others}


def make_filters(params: Sequence[SamplingParams], vocab: int) -> Filters:
    return Filters.of([draw_params(entry, vocab) for entry in params], torch.device("cpu"))
