"""Prompt lookup: what it finds, and that it never misses what is there."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.flow import Admit, SamplingParams
from penstock.speculate.lookup import PromptLookup
from penstock.speculate.ngram_index import CANDIDATES, FEW, LONGEST, NgramIndex
from penstock.speculate.proposer import DraftRow


def propose(tokens: list[int], most: int = 4) -> tuple[list[int], int]:
    lookup = PromptLookup(np.array([tokens], dtype=np.int32))
    lookup.admit(Admit(0, tokens, len(tokens), SamplingParams(), 0, 0, (), []))
    (found,) = lookup.propose([DraftRow(0, len(tokens), most)])
    return found.tokens, found.kind


def test_proposes_what_followed_the_same_tokens() -> None:
    assert propose([9, 1, 2, 3, 4, 5, 6, 1, 2, 3]) == ([4, 5, 6, 1], 1)
    assert propose([9, 1, 2, 3, 4, 5, 6, 7, 2, 3]) == ([4, 5, 6, 7], 1)
    assert propose([9, 1, 2, 3, 4, 5, 6, 7, 8, 3]) == ([4, 5, 6, 7], 0), "one token is enough, but another kind"
    assert propose([9, 1, 2, 3, 4, 5, 6, 7, 8, 0]) == ([], 0)


def test_of_one_token_what_follows_most_often() -> None:
    assert propose([3, 8, 0, 3, 7, 1, 3, 8, 2, 3], 1) == ([8], 0)
    assert propose([3, 8, 0, 3, 7, 1, 3, 8, 2, 4, 5, 9, 3, 4, 6, 3, 4], 2) == ([6, 3], 1), "a pair goes before"


def test_the_longest_match_wins_and_then_what_follows_most_often() -> None:
    assert propose([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3], 1) == ([7], 1)
    assert propose([1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3, 8, 0, 1, 2, 3], 1) == ([8], 1)
    long = [11, 12, 13, 14, 15, 1, 2, 3]
    assert propose([*long, 7, 0, 1, 2, 3, 8, 0, 1, 2, 3, 8, *long], 1) == ([7], 3)


def test_a_repetition_goes_on() -> None:
    assert propose([5, 6, 7, 5, 6, 7, 5, 6, 7], 7)[0] == [5, 6, 7, 5, 6, 7, 5]
    assert propose([4, 4, 4, 4], 3)[0] == [4, 4, 4]


def test_a_slot_forgets_the_sequence_before() -> None:
    tokens = np.array([[1, 2, 3, 4, 5, 1, 2, 3]], dtype=np.int32)
    lookup = PromptLookup(tokens)
    lookup.admit(Admit(0, [], 0, SamplingParams(), 0, 0, (), []))
    assert lookup.propose([DraftRow(0, 8, 2)])[0].tokens == [4, 5]
    tokens[0] = [7, 7, 8, 9, 6, 1, 2, 3]
    lookup.admit(Admit(0, [], 0, SamplingParams(), 0, 0, (), []))
    assert lookup.propose([DraftRow(0, 8, 2)])[0].tokens == []


@pytest.mark.parametrize("least", [1, 2])
@settings(derandomize=True, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 3), min_size=4, max_size=120),
    pieces=st.lists(st.integers(1, 3 * FEW), min_size=1, max_size=8),
)
def test_an_index_finds_the_same_however_it_grew(least: int, tokens: list[int], pieces: list[int]) -> None:
    """In pieces, hashed one by one or all at once: as by comparing everything."""
    known = np.array(tokens, dtype=np.int32)
    index, end = NgramIndex(least), 0
    for piece in pieces:
        end = min(end + piece, len(tokens) - 1)
        index.extend(known, end)
    index.extend(known, len(tokens) - 1)
    found = index.find(known, known)

    def same(at: int) -> int:
        """Tokens before `at` that are the same as the last ones."""
        most = min(at, LONGEST if least > 1 else 1)
        return next((n for n in range(most) if tokens[at - 1 - n] != tokens[-1 - n]), most)

    ends = [at for at in range(least, len(tokens)) if same(at) >= least][-CANDIDATES:]
    if not ends:
        assert found is None
        return
    assert found is not None
    longest = [at for at in ends if same(at) == max(map(same, ends))]
    following = Counter(tokens[at] for at in longest)
    wanted = next(at for at in longest if following[tokens[at]] == max(following.values()))
    assert found == (wanted, same(wanted))
