import math

import numpy as np
import pytest
import torch

from penstock.flow import Admit, SamplingParams
from penstock.sample.masks import TokenMasks, combine

CPU = torch.device("cpu")
VOCAB = 10


def masks(params: SamplingParams, ends: tuple[int, ...] = (8, 9)) -> TokenMasks | None:
    return TokenMasks.of(Admit(0, [1], 1, params, 0, 0, ends, []), VOCAB)


def possible(params: SamplingParams, *, early: bool) -> set[int]:
    mine = masks(params)
    assert mine is not None
    logits = torch.zeros(3, VOCAB)
    combine([(1, mine, early)], VOCAB, CPU).ban(logits)
    assert (logits[[0, 2]] == 0).all(), "only its own row"
    bits = np.unpackbits(mine.allowed_bits(VOCAB, early), count=VOCAB, bitorder="little")
    found = set((logits[1] > -math.inf).nonzero()[:, 0].tolist())
    assert found == set(bits.nonzero()[0].tolist())
    return found


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


def test_ids_beyond_the_vocabulary_do_not_reach_the_next_row() -> None:
    params = SamplingParams(logit_bias={12: 5.0, 1: 1.0}, banned_tokens=(11,), min_tokens=1)
    mine = masks(params, ends=(13, 4))
    assert mine is not None
    step = combine([(0, mine, True)], VOCAB, CPU)
    logits = torch.zeros(2, VOCAB)
    step.add_bias(logits)
    step.ban(logits)
    assert (logits[1] == 0).all()
    assert logits[0].tolist() == [0, 1, 0, 0, -math.inf, 0, 0, 0, 0, 0]


def test_each_row_gets_its_own() -> None:
    several = [
        masks(SamplingParams(logit_bias={1: 2.0})),
        masks(SamplingParams(allowed_tokens=(3, 4), logit_bias={3: -1.0})),
        masks(SamplingParams(banned_tokens=(0,))),
    ]
    step = combine([(row, mine, False) for row, mine in zip((3, 1, 0), several, strict=True) if mine], VOCAB, CPU)
    logits = torch.zeros(4, VOCAB)
    step.add_bias(logits)
    step.ban(logits)
    inf = math.inf
    assert logits.tolist() == [
        [-inf, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        [-inf, -inf, -inf, -1, 0, -inf, -inf, -inf, -inf, -inf],
        [0] * 10,
        [0, 2, 0, 0, 0, 0, 0, 0, 0, 0],
    ]
