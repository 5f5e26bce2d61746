"""Outputs of earlier requests: found by the same tenant alone, and bounded."""

from __future__ import annotations

import numpy as np

from penstock.flow import Admit, SamplingParams
from penstock.speculate.lookup import PromptLookup
from penstock.speculate.output_store import MOST_SCOPES, MOST_TOKENS, OutputStore
from penstock.speculate.proposer import DraftRow

STORY = list(range(100, 140))


def admit(slot: int, tokens: list[int], scope: bytes) -> Admit:
    return Admit(slot, tokens, len(tokens), SamplingParams(), 0, 0, (), [], scope=scope)


def propose_after_a_story(scope: bytes, prompt: list[int]) -> list[int]:
    """Another request, behind one whose output was STORY."""
    tokens = np.zeros((2, 64), dtype=np.int32)
    lookup = PromptLookup(tokens)
    lookup.admit(admit(0, [1, 2, 3], b"mine"))
    tokens[0, : 3 + len(STORY)] = [1, 2, 3, *STORY]
    lookup.propose([DraftRow(0, 3 + len(STORY), 4)])
    lookup.admit(admit(0, prompt, scope))
    tokens[0, : len(prompt)] = prompt
    return lookup.propose([DraftRow(0, len(prompt), 4)])[0].tokens


def test_what_followed_in_an_earlier_output_is_proposed() -> None:
    assert propose_after_a_story(b"mine", [7, 8, 110, 111, 112]) == [113, 114, 115, 116]
    assert propose_after_a_story(b"mine", [1, 2, 3]) == STORY[:4], "the first tokens, behind the same prompt"
    assert propose_after_a_story(b"mine", [136, 137, 138]) == [139], "up to its end"


def test_nothing_of_another_tenant_or_salt() -> None:
    assert propose_after_a_story(b"other", [7, 8, 110, 111, 112]) == []


def test_a_longer_match_of_its_own_wins() -> None:
    own = [110, 111, 112, 55, 110, 111, 112]
    assert propose_after_a_story(b"mine", own)[0] == 55


def test_the_newest_outputs_are_kept() -> None:
    store = OutputStore()
    size = 300
    for number in range(3 * MOST_TOKENS // size):
        store.add(b"a", np.arange(number * size, (number + 1) * size, dtype=np.int32))
    last = number * size
    found = store.find(b"a", np.arange(last, last + 20, dtype=np.int32), 4)
    assert found is not None
    assert found[0] == [last + 20, last + 21, last + 22, last + 23]
    assert store.find(b"a", np.arange(20, dtype=np.int32), 4) is None, "the oldest are gone"


def test_scopes_are_bounded() -> None:
    store = OutputStore()
    output = np.arange(20, dtype=np.int32)
    for number in range(MOST_SCOPES + 1):
        store.add(bytes([number]), output)
    assert store.find(bytes([0]), output[:10], 2) is None
    assert store.find(bytes([1]), output[:10], 2) == ([10, 11], 10)
