import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from penstock.capacity.device import PRESETS as DEVICES
from penstock.capacity.formats import FORMATS
from penstock.capacity.shape import PRESETS
from penstock.capacity.speculation import best_drafts, speedup, tokens_per_verification, verify_cost
from penstock.capacity.speed import Speed

ONE = Speed(PRESETS["llama-3.1-8b"], DEVICES["h100-sxm"], FORMATS["bfloat16"], 16)


@pytest.mark.parametrize(
    ("acceptance", "drafts", "published"),
    [(0.6, 2, 1.96), (0.7, 3, 2.53), (0.8, 2, 2.44), (0.8, 5, 3.69), (0.9, 2, 2.71), (0.9, 10, 6.86)],
)
def test_the_table_of_the_paper(acceptance: float, drafts: int, published: float) -> None:
    """Leviathan et al., "Fast Inference from Transformers via Speculative Decoding", table 1: drafts for nothing."""
    assert tokens_per_verification(acceptance, drafts) == pytest.approx(published, abs=0.005)
    assert speedup(acceptance, drafts, 0) == pytest.approx(published, abs=0.005)


def test_it_is_not_one_plus_a_k() -> None:
    assert tokens_per_verification(0.7, 4) == pytest.approx(2.7731)
    assert tokens_per_verification(0.7, 4) < 1 + 0.7 * 4


def test_against_throwing_dice() -> None:
    dice, acceptance, drafts = random.Random(1), 0.7, 4
    total = 0
    for _ in range(20_000):
        right = 0
        while right < drafts and dice.random() < acceptance:
            right += 1
        total += right + 1
    assert total / 20_000 == pytest.approx(tokens_per_verification(acceptance, drafts), rel=0.02)


@given(st.floats(0, 1), st.integers(1, 64))
def test_limits(acceptance: float, drafts: int) -> None:
    tokens = tokens_per_verification(acceptance, drafts)
    assert 1 <= tokens <= drafts + 1 + 1e-9
    assert tokens <= tokens_per_verification(acceptance, drafts + 1) + 1e-9
    assert tokens == pytest.approx(sum(acceptance**right for right in range(drafts + 1)), rel=1e-6)


def test_verifying_costs_a_step_alone_and_more_where_arithmetic_is_the_limit() -> None:
    assert verify_cost(ONE, 1, 0, 4) == 1
    assert verify_cost(ONE, 512, 0, 4) == pytest.approx(5)  # five tokens each instead of one, all of it arithmetic
    assert speedup(0.7, 4, 0.05, verify_cost(ONE, 512, 0, 4)) < 1


def test_the_best_number_of_drafts() -> None:
    drafts, gain = best_drafts(ONE, 1, 0, 0.8, 0.05)
    assert gain == max(speedup(0.8, count, 0.05) for count in range(1, 17)) == speedup(0.8, drafts, 0.05)
    assert best_drafts(ONE, 512, 0, 0.8, 0.05) == (0, 1.0)
    assert best_drafts(ONE, 1, 0, 0.0, 0.05) == (0, 1.0)
