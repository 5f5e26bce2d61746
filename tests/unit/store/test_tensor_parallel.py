from __future__ import annotations

import pytest
from msgspec.structs import replace

from helpers.model_specs import small_spec
from penstock.errors import InvalidSetting
from penstock.store.tensor_parallel import check_degree, degrees, rank_spec

SMOLLM2 = replace(small_spec(), name="smollm2", num_heads=9, num_kv_heads=3, intermediate_size=1536)


def test_the_error_names_the_degrees_that_divide_the_model() -> None:
    assert degrees(SMOLLM2) == [3]
    check_degree(SMOLLM2, 1)
    check_degree(SMOLLM2, 3)
    with pytest.raises(
        InvalidSetting, match=r"smollm2 cannot be split over 2 ranks: 9 heads .*; possible are 3$"
    ) as info:
        check_degree(SMOLLM2, 2)
    assert info.value.param == "tensor_parallel"


@pytest.mark.parametrize(
    ("heads", "kv_heads", "intermediate", "possible"),
    [(8, 2, 96, [2, 4, 8]), (12, 3, 96, [3, 6, 12]), (8, 8, 100, [2, 4]), (7, 7, 96, []), (16, 8, 96, [2, 4, 8, 16])],
)
def test_degrees(heads: int, kv_heads: int, intermediate: int, possible: list[int]) -> None:
    spec = replace(SMOLLM2, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=intermediate)
    assert degrees(spec) == possible
    for degree in set(range(2, 20)) - set(possible):
        with pytest.raises(InvalidSetting):
            check_degree(spec, degree)


def test_a_model_that_cannot_be_split() -> None:
    with pytest.raises(InvalidSetting, match="it cannot be split at all"):
        check_degree(replace(SMOLLM2, num_heads=7, num_kv_heads=7), 7 * 5)


def test_kv_heads_of_a_rank() -> None:
    spec = replace(SMOLLM2, num_heads=8, num_kv_heads=2, intermediate_size=96)
    assert [rank_spec(spec, degree).num_kv_heads for degree in (1, 2, 4, 8)] == [2, 1, 1, 1]
    assert rank_spec(spec, 4).num_heads == 2
    assert rank_spec(spec, 4).vocab_size == spec.vocab_size
