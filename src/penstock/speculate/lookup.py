"""Prompt lookup: a sequence that repeats tokens of its prompt or its output, or of an earlier output of the same
tenant, is expected to go on as it did there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from penstock.flow import Admit, Row
from penstock.kernels.arrays import Array
from penstock.speculate.ngram_index import NgramIndex
from penstock.speculate.output_store import OutputStore
from penstock.speculate.proposer import DraftRow, Host, Proposal
from penstock.store.files import ModelFiles

# How likely a token is right, by the number of tokens that are the same: 1, up to 4, 7, 15, or more. Those of earlier
# outputs are 2 at least.
OWN_RATES = (0.2, 0.3, 0.5, 0.7, 0.85)
OUTPUT_RATES = (0.2, 0.4, 0.6, 0.8)
LONG = 16  # tokens: such a match is good enough
LEAD = 8  # tokens of the prompt that are kept with an output, so that its first tokens are found, too


def prepare(argument: str, target: ModelFiles) -> LookupSource:
    return LookupSource()


class LookupSource:
    """Implements `DraftSource`."""

    taps = None
    layers = None

    def build(self, host: Host) -> PromptLookup:
        return PromptLookup(host.tokens)


@dataclass(slots=True)
class IndexedSequence:
    scope: bytes
    prompt_length: int
    length: int = 0  # tokens, when something was last proposed
    pairs: NgramIndex = field(default_factory=NgramIndex)
    singles: NgramIndex = field(default_factory=lambda: NgramIndex(1))  # asked where no pair has occurred before


class PromptLookup:
    """Implements `Proposer`."""

    kinds = OWN_RATES + OUTPUT_RATES
    computes = False
    taps = None

    def __init__(self, tokens: Array) -> None:
        """`tokens` [slots, context] int32: the sequences."""
        self._tokens = tokens
        self._sequences: dict[int, IndexedSequence] = {}  # by slot
        self._outputs = OutputStore()

    def admit(self, admit: Admit) -> None:
        before = self._sequences.get(admit.slot)
        if before is not None and before.length > before.prompt_length:
            start = max(0, before.prompt_length - LEAD)
            self._outputs.add(before.scope, self._tokens[admit.slot, start : before.length])
        self._sequences[admit.slot] = IndexedSequence(admit.scope, admit.prompt_length)

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        raise AssertionError("it reads no states")

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        return [self._propose(row) for row in rows]

    def _propose(self, row: DraftRow) -> Proposal:
        sequence, length = self._sequences[row.slot], row.length
        known = self._tokens[row.slot, :length]
        sequence.length = length
        for index in (sequence.pairs, sequence.singles):
            index.extend(known, length - 1)
        position, same = sequence.pairs.find(known, known) or sequence.singles.find(known, known) or (0, 0)
        if same < LONG:
            earlier = self._outputs.find(sequence.scope, known, row.most)
            if earlier is not None and earlier[1] > same:
                return Proposal(earlier[0], len(OWN_RATES) - 1 + _kind(earlier[1]))
        if not same:
            return Proposal([])
        tokens: list[int] = known[position : position + row.most].tolist()
        while len(tokens) < row.most:  # a repetition that is still going on
            tokens.append(tokens[len(tokens) - (length - position)])
        return Proposal(tokens, _kind(same))


def _kind(same: int) -> int:
    return (same > 1) + (same > 4) + (same > 7) + (same > 15)
