import math

import numpy as np
import pytest

from penstock.flow import Admit, SamplingParams
from penstock.sample.masks import TokenMasks, apply_mask, pack_bits

VOCAB = 10


def masks(params: SamplingParams, ends: tuple[int, ...] = (8, 9)) -> TokenMasks | None:
    return TokenMasks.of(Admit(0, [1], 1, params, 0, 0, ends, []), VOCAB)


def possible(params: SamplingParams, *, early: bool) -> set[int]:
    mine = masks(params)
    assert mine is not None
    logits = np.zeros(VOCAB, dtype=np.float32)
    apply_mask(logits, mine.allowed_bits(VOCAB, early))
    return set((logits > -math.inf).nonzero()[0].tolist())


def test_a_request_without_masks_has_none() -> None:
    assert masks(SamplingParams()) is None


@pytest.mark.parametrize(
    ("params", "early", "expected"),
    [
        (SamplingParams(banned_tokens=(1, 2)), False, {0, 3, 4, 5, 6, 7, 8, 9}),
        (SamplingParams(allowed_tokens=(1, 2, 8)), False, {1, 2, 8}),
        (SamplingParams(allowed_tokens=(1, 2, 8), banned_tokens=(2,)), False, {1, 8}),
        (SamplingParams(min_tokens=1), True, {0, 1, 2, 3, 4, 5, 6, 7}),
        (SamplingParams(min_tokens=1), False, set(range(10))),
        (SamplingParams(min_tokens=1, allowed_tokens=(1, 8)), True, {1}),
        (SamplingParams(min_tokens=1, banned_tokens=(1,)), True, {0, 2, 3, 4, 5, 6, 7}),
    ],
)
def test_what_may_be_drawn(params: SamplingParams, early: bool, expected: set[int]) -> None:
    assert possible(params, early=early) == expected


def test_contradictions_leave_an_allowed_token() -> None:
    assert possible(SamplingParams(allowed_tokens=(8,), min_tokens=5), early=True) == {8}


def test_ids_beyond_the_vocabulary_have_no_logit() -> None:
    params = SamplingParams(logit_bias={12: 5.0, 1: 1.0}, banned_tokens=(11,), min_tokens=1)
    mine = masks(params, ends=(13, 4))
    assert mine is not None
    assert mine.bias_tokens is not None
    assert mine.bias is not None
    assert (mine.bias_tokens.tolist(), mine.bias.tolist()) == ([1], [1.0])
    assert mine.banned is None
    assert mine.ends is not None
    assert mine.ends.tolist() == [4]
    assert len(mine.allowed_bits(VOCAB, True)) == 4, "whole words"


@pytest.mark.parametrize("count", [0, 1, 20, 49, 50])
def test_few_and_many_allowed_tokens(count: int) -> None:
    values = np.arange(50, dtype=np.float32)
    apply_mask(values, pack_bits(range(count), 50))
    assert values.tolist() == [*range(count), *[-math.inf] * (50 - count)]
