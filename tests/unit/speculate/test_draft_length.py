"""How many tokens are worth drafting."""

import pytest

from penstock.flow.step_costs import StepCosts
from penstock.speculate.draft_length import MEMORY, Rates, choose_lengths

STEEP = StepCosts({1: 1.0, 2: 1.25, 4: 1.75, 8: 2.75})  # a draft costs a quarter of a step


@pytest.mark.parametrize(("rate", "length"), [(0.2, 0), (0.3, 1), (0.6, 2), (0.8, 6), (1.0, 16)])
def test_drafts_as_long_as_the_next_one_pays(rate: float, length: int) -> None:
    assert choose_lengths(STEEP, 1, [(rate, 16)]) == [length]


def test_a_large_batch_pays_for_no_drafts() -> None:
    assert choose_lengths(STEEP, 1, [(0.9, 16)])[0] > 4
    assert choose_lengths(StepCosts({1: 1.0, 2: 2.0}), 8, [(0.99, 16)] * 8) == [0] * 8, "tokens cost as much as steps"


def test_the_likeliest_tokens_of_all_rows_are_drafted() -> None:
    bent = StepCosts({1: 1.0, 8: 1.05, 9: 2.0, 16: 9.0})
    assert choose_lengths(bent, 2, [(0.9, 4)]) == [4]
    assert choose_lengths(bent, 2, [(0.6, 9), (0.9, 9), (0.2, 9)]) == [1, 5, 0], "eight tokens are cheap"


def test_tokens_up_to_the_end_of_a_tile() -> None:
    """One draft does not pay, and neither do two; three cost the same."""
    tiles = StepCosts({1: 1.0, 2: 1.6, 3: 1.6, 4: 1.6, 5: 3.0})
    assert choose_lengths(tiles, 1, [(0.5, 2)]) == [2]
    assert choose_lengths(tiles, 1, [(0.5, 9)]) == [3]
    assert choose_lengths(tiles, 1, [(0.35, 9)]) == [0]
    assert choose_lengths(tiles, 1, [(0.55, 1)]) == [0]
    assert choose_lengths(tiles, 2, [(0.5, 1), (0.5, 1)]) == [1, 1], "in a tile with another row's"


def test_a_sequence_begins_where_others_are_and_has_its_own_rate_soon() -> None:
    everyone, own = Rates([0.5]), Rates([0.5])
    assert own.rate(0, everyone) == 0.5
    for _ in range(20):
        everyone.add(0, 4, 4)
    assert own.rate(0, everyone) > 0.9
    for _ in range(24):
        own.add(0, 4, 0)
    assert own.rate(0, everyone) < 0.3
    assert everyone.rate(0) > 0.9


def test_tokens_behind_a_wrong_one_say_nothing() -> None:
    one, other = Rates([0.5, 0.5]), Rates([0.5, 0.5])
    one.add(0, 1, 0)
    other.add(0, 16, 0)
    assert one.rate(0) == other.rate(0)
    assert one.rate(1) == 0.5, "another kind"


def test_the_past_fades() -> None:
    rates = Rates([0.5])
    for _ in range(1000):
        rates.add(0, 4, 4)
    for _ in range(int(MEMORY)):
        rates.add(0, 1, 0)
    assert rates.rate(0) < 0.5
