"""Heads as proposers: states come step by step, as a backend has them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from helpers import draft_heads
from helpers.draft_heads import HIDDEN, VOCAB, Drawn, target_spec
from penstock.flow import Admit, SamplingParams
from penstock.kernels.arrays import Array
from penstock.speculate.head_proposer import ChainHeadProposer, MedusaProposer
from penstock.speculate.heads.chain import ChainHead, HeadSequence
from penstock.speculate.heads.eagle import read_eagle
from penstock.speculate.heads.medusa import read_medusa
from penstock.speculate.heads.medusa_heads import MedusaHeads
from penstock.speculate.proposer import DraftRow

HEAD = Drawn(2).matrix(VOCAB, HIDDEN)
SLOT, CONTEXT = 1, 40
TOKENS: Array = np.random.default_rng(3).integers(0, VOCAB, (3, CONTEXT)).astype(np.int32)
STATES: Array = np.random.default_rng(4).standard_normal((CONTEXT, HIDDEN)).astype(np.float32)


def admit(slot: int = SLOT, tokens: Sequence[int] = ()) -> Admit:
    return Admit(
        slot=slot,
        tokens=list(tokens),
        prompt_length=len(tokens),
        params=SamplingParams(),
        seed=0,
        choice=0,
        end_tokens=(),
        blocks=[],
    )


@pytest.fixture
def head(tmp_path: Path) -> ChainHead:
    spec, weights = read_eagle(draft_heads.eagle1(tmp_path), target_spec())
    return ChainHead(spec, weights, HEAD, HEAD, CONTEXT)


def expected(head: ChainHead, first: int, length: int, most: int) -> list[int]:
    """Drafts after `length` known tokens, by a head that saw the states from `first` on at once."""
    sequence = HeadSequence(head.spec)
    head.extend(sequence, TOKENS[SLOT, first + 1 : length], STATES[first : length - 1])
    return head.draft(sequence, most)


@pytest.mark.parametrize("first", [0, 16])  # 16: the tokens before were found in the prefix cache
def test_chain_head_follows_a_sequence(head: ChainHead, first: int) -> None:
    proposer = ChainHeadProposer(head, TOKENS)
    proposer.admit(admit())
    end = first
    for count in (7, 4, 1, 3, 1):  # chunks of the prompt, then a token or several at a time
        proposer.observe(SLOT, end, STATES[end : end + count])
        end += count
        (proposal,) = proposer.propose([DraftRow(SLOT, end + 1, 3)])
        assert proposal.tokens == expected(head, first, end + 1, 3)


def test_chain_head_drafts_nothing_where_states_are_missing(head: ChainHead) -> None:
    proposer = ChainHeadProposer(head, TOKENS)
    proposer.admit(admit())
    assert proposer.propose([DraftRow(SLOT, 5, 3)])[0].tokens == []
    proposer.observe(SLOT, 0, STATES[:3])
    assert proposer.propose([DraftRow(SLOT, 5, 3)])[0].tokens == []  # position 3 was not seen
    proposer.observe(SLOT, 4, STATES[4:9])  # a gap: entries begin again behind it
    assert proposer.propose([DraftRow(SLOT, 10, 3)])[0].tokens == expected(head, 4, 10, 3)


def test_another_sequence_takes_the_slot(head: ChainHead) -> None:
    proposer = ChainHeadProposer(head, TOKENS)
    proposer.admit(admit())
    proposer.observe(SLOT, 0, STATES[:9])
    proposer.propose([DraftRow(SLOT, 10, 2)])
    proposer.admit(admit())
    assert proposer.propose([DraftRow(SLOT, 10, 2)])[0].tokens == []
    proposer.observe(SLOT, 0, STATES[:4])
    assert proposer.propose([DraftRow(SLOT, 5, 2)])[0].tokens == expected(head, 0, 5, 2)


def test_medusa_reads_the_newest_state(tmp_path: Path) -> None:
    spec, weights = read_medusa(draft_heads.medusa(tmp_path), target_spec())
    heads = MedusaHeads(spec, weights, HEAD)
    proposer = MedusaProposer(heads)
    proposer.admit(admit())
    assert proposer.propose([DraftRow(SLOT, 6, 3)])[0].tokens == []
    proposer.observe(SLOT, 0, STATES[:5])
    assert proposer.propose([DraftRow(SLOT, 6, 3)])[0].tokens == heads.draft(STATES[4], 3)
    assert proposer.propose([DraftRow(SLOT, 7, 3)])[0].tokens == []
    proposer.admit(admit())
    assert proposer.propose([DraftRow(SLOT, 6, 3)])[0].tokens == []
