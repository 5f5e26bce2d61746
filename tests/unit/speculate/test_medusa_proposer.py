"""Medusa heads on the native kernels draft what the reference in numpy drafts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers import draft_heads
from helpers.draft_heads import HIDDEN, VOCAB, Drawn, target_spec
from helpers.draft_host import HostWithSlots, admit
from helpers.native_paged_model import needs_library
from penstock.flow import Row
from penstock.kernels.arrays import Array
from penstock.speculate.heads.medusa import read_medusa
from penstock.speculate.heads.medusa_heads import MedusaHeads
from penstock.speculate.medusa_proposer import MedusaSource
from penstock.speculate.proposer import DraftRow

pytestmark = needs_library
HEAD = Drawn(22).matrix(VOCAB, HIDDEN)
STATES: Array = np.random.default_rng(24).standard_normal((2, 40, HIDDEN)).astype(np.float32)
KINDS: dict[str, Callable[[Path], Path]] = {
    "all tokens": draft_heads.medusa,
    "some tokens": lambda folder: draft_heads.medusa(
        folder, truncated_vocab_size=20, change={"token_map": np.arange(5, 65, 3)}
    ),
    "the target's head": lambda folder: draft_heads.medusa(
        folder, original_lm_head=True, without=tuple(f"{head}.2.weight" for head in range(3))
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_reference(tmp_path: Path, kind: str) -> None:
    spec, weights = read_medusa(KINDS[kind](tmp_path), target_spec())
    shared = HostWithSlots(HEAD, HEAD)
    proposer, heads = MedusaSource(spec, weights).build(shared.host, quantize=None), MedusaHeads(spec, weights, HEAD)
    assert proposer.propose([DraftRow(0, 12, 3)])[0].tokens == []
    proposer.follow([Row(0, 0, 11, 1), Row(1, 0, 21, 1)], np.concatenate((STATES[0, :11], STATES[1, :21])))
    first, second = proposer.propose([DraftRow(0, 12, 5), DraftRow(1, 22, 2)])
    assert first.tokens == heads.draft(STATES[0, 10], 3)
    assert second.tokens == heads.draft(STATES[1, 20], 2)
    assert shared.tokens[0, 12:15].tolist() == first.tokens
    proposer.admit(admit(0))
    assert proposer.propose([DraftRow(0, 12, 3)])[0].tokens == []
