"""Chain heads on the native kernels draft what the reference in numpy drafts, which is held against transformers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from helpers import draft_heads
from helpers.draft_heads import HIDDEN, VOCAB, Drawn, target_spec
from helpers.draft_host import BLOCK, CONTEXT, HostWithSlots, admit
from helpers.native_paged_model import needs_library
from penstock.flow import Row
from penstock.kernels.arrays import Array
from penstock.speculate.chain_proposer import ChainProposer, ChainSource
from penstock.speculate.heads.chain import ChainHead, HeadSequence
from penstock.speculate.heads.eagle import read_eagle
from penstock.speculate.proposer import DraftRow

pytestmark = needs_library
EMBEDDING, HEAD = Drawn(21).matrix(VOCAB, HIDDEN) * 4, Drawn(22).matrix(VOCAB, HIDDEN)
KINDS: dict[str, Callable[[Path], Path]] = {
    "eagle1": draft_heads.eagle1,
    "two layers": lambda folder: draft_heads.eagle1(
        folder,
        num_hidden_layers=2,
        change=Drawn(7).layer("layers.1.", norms=("input_layernorm", "post_attention_layernorm")),
    ),
    "the target's embedding": lambda folder: draft_heads.eagle1(folder, without=("embed_tokens.weight",)),
    "some tokens": lambda folder: draft_heads.eagle1(
        folder, truncated_vocab_size=20, change={"token_map": np.arange(5, 65, 3)}
    ),
    "eagle3": draft_heads.eagle3,
    "norm before residual": lambda folder: draft_heads.eagle3(folder, norm_before_residual=True),
}


class Both:
    """A proposer and the reference, given the same states."""

    def __init__(self, folder: Path) -> None:
        spec, weights = read_eagle(folder, target_spec())
        self.shared = HostWithSlots(EMBEDDING, HEAD)
        self.proposer: ChainProposer = ChainSource(spec, weights).build(self.shared.host, quantize=None)
        self.head = ChainHead(spec, weights, EMBEDDING, HEAD, CONTEXT)
        width = HIDDEN * max(1, len(spec.taps))
        self.states: Array = np.random.default_rng(24).standard_normal((3, CONTEXT, width)).astype(np.float32)

    def follow(self, *rows: Row) -> None:
        parts = [self.states[row.slot, row.start : row.start + row.count] for row in rows]
        self.proposer.follow(rows, np.concatenate(parts))

    def expected(self, row: DraftRow) -> list[int]:
        sequence, tokens = HeadSequence(self.head.spec), self.shared.tokens[row.slot]
        self.head.extend(sequence, tokens[1 : row.length], self.states[row.slot, : row.length - 1])
        return self.head.draft(sequence, row.most)

    def check(self, *rows: DraftRow) -> None:
        found = [proposal.tokens for proposal in self.proposer.propose(rows)]
        assert found == [self.expected(row) for row in rows]


@pytest.mark.parametrize("kind", KINDS)
def test_drafts_are_those_of_the_reference(tmp_path: Path, kind: str) -> None:
    """Prompts in chunks, then steps with some drafts right and others wrong, in several slots."""
    both = Both(KINDS[kind](tmp_path))
    both.follow(Row(0, 0, 17, 0))
    both.follow(Row(0, 17, 6, 1), Row(2, 0, 30, 1))
    both.check(DraftRow(0, 24, 4), DraftRow(2, 31, 2))
    both.follow(Row(0, 23, 3, 3), Row(2, 30, 1, 1))  # drafts were other tokens than those in the slots are now
    both.check(DraftRow(2, 32, 3), DraftRow(0, 27, 1))
    both.follow(Row(0, 26, 1, 1))
    both.check(DraftRow(0, 28, 4))


def test_more_states_wait_than_a_step_has_tokens(tmp_path: Path) -> None:
    both = Both(draft_heads.eagle1(tmp_path))
    both.follow(Row(0, 0, 4, 0), Row(1, 0, 7, 0), Row(2, 0, 5, 1))
    both.follow(Row(0, 4, 58, 1), Row(1, 7, 60, 1))  # with those that wait, more than twice STEP_TOKENS
    both.check(DraftRow(1, 68, 2), DraftRow(0, 63, 3), DraftRow(2, 6, 2))


def test_a_full_block_has_its_entries_without_drafts(tmp_path: Path) -> None:
    """A sequence that finds it in the prefix cache goes on from there. The head runs once for each block."""
    both = Both(draft_heads.eagle1(tmp_path))
    tokens, tables, prefix = both.shared.tokens, both.shared.host.block_table, 2 * BLOCK
    runs: list[int] = []
    run = both.proposer._run
    both.proposer._run = lambda *given: (runs.append(len(given[2])), run(*given))[1]  # type: ignore[method-assign]
    for position in range(prefix):
        both.follow(Row(0, position, 1, 1))
    assert runs == [BLOCK, BLOCK]
    both.proposer.admit(admit(1))
    tokens[1, : prefix + 1], both.states[1, :prefix] = tokens[0, : prefix + 1], both.states[0, :prefix]
    tables[1, :2] = tables[0, :2]
    both.follow(Row(1, prefix, 3, 1))
    both.check(DraftRow(1, prefix + 4, 4))


def test_drafts_are_written_to_the_slots(tmp_path: Path) -> None:
    both = Both(draft_heads.eagle1(tmp_path))
    both.follow(Row(1, 0, 9, 1))
    before = both.shared.tokens.copy()
    (proposal,) = both.proposer.propose([DraftRow(1, 10, 3)])
    assert both.shared.tokens[1, 10:13].tolist() == proposal.tokens
    both.shared.tokens[1, 10:13] = before[1, 10:13]
    assert np.array_equal(both.shared.tokens, before)


def test_nothing_is_drafted_for_a_sequence_that_was_not_followed(tmp_path: Path) -> None:
    both = Both(draft_heads.eagle1(tmp_path))
    both.follow(Row(0, 0, 9, 1), Row(1, 0, 5, 1))
    both.proposer.admit(admit(0))
    found = both.proposer.propose([DraftRow(0, 10, 2), DraftRow(1, 6, 2), DraftRow(2, 6, 2)])
    assert [len(proposal.tokens) for proposal in found] == [0, 2, 0]


def test_quantized_weights_change_little(tmp_path: Path) -> None:
    both = Both(draft_heads.eagle1(tmp_path))
    spec, weights = read_eagle(tmp_path, target_spec())
    quantized = ChainSource(spec, weights).build(both.shared.host)
    rows, states = [Row(0, 0, 40, 1)], both.states[0, :40]
    for proposer in (both.proposer, quantized):
        proposer.follow(rows, states)
    exact, rough = both.proposer._features[0], quantized._features[0]
    assert 0 < np.abs(exact - rough).max() < 0.05 * np.abs(exact).max()
