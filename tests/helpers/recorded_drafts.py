"""A proposer that knows the answers: what it drafts is right as often as a test wants."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest

from penstock.flow import Admit, Completion, Row
from penstock.flow.step_costs import StepCosts
from penstock.forward import native_backend, torch_backend
from penstock.kernels.arrays import Array
from penstock.speculate import lookup
from penstock.speculate.proposer import DraftRow, Proposal


class FreeDrafts(StepCosts):
    """Drafts cost next to nothing, so there are many of them, however long the steps of a busy machine take."""

    def __init__(self) -> None:
        super().__init__({1: 1.0, 2: 1.0})

    def observe(self, rows: int, drafts: int, seconds: float, ahead: bool = False) -> None:
        pass


class RecordedDrafts:
    """Implements `Proposer`."""

    kinds = (0.95,)
    computes = False
    taps = None

    def __init__(self, tokens: Array, answers: list[list[int]], random: Random, right: float) -> None:
        self._tokens, self._answers, self._random, self._right = tokens, answers, random, right
        self._prompts: dict[int, int] = {}  # length, by slot

    def admit(self, admit: Admit) -> None:
        self._prompts[admit.slot] = admit.prompt_length

    def follow(self, rows: Sequence[Row], states: Array) -> None:
        raise AssertionError("it reads no states")

    def propose(self, rows: Sequence[DraftRow]) -> list[Proposal]:
        return [Proposal(self._propose(row)) for row in rows]

    def _propose(self, row: DraftRow) -> list[int]:
        known = self._tokens[row.slot, : row.length].tolist()
        answer = next((answer for answer in self._answers if answer[: row.length] == known), [])
        tokens = answer[row.length : row.length + self._random.randint(0, row.most)]
        vocabulary = sorted({token for answer in self._answers for token in answer})
        return [token if self._random.random() < self._right else self._random.choice(vocabulary) for token in tokens]


def draft_recorded(monkeypatch: pytest.MonkeyPatch, completions: Sequence[Completion], right: float = 0.9) -> None:
    """Engines that are built from now on draft tokens of these completions."""
    answers = [result.prompt_tokens + choice.tokens for result in completions for choice in result.choices]

    def make(tokens: Array) -> RecordedDrafts:
        return RecordedDrafts(tokens, answers, Random(len(answers)), right)

    for module in (lookup, torch_backend):
        monkeypatch.setattr(module, "PromptLookup", make)
    draft_freely(monkeypatch)


def draft_freely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines that are built from now on draft whatever they find, for it costs nothing."""
    for backend in (native_backend, torch_backend):
        monkeypatch.setattr(backend, "step_costs", lambda *_, **__: FreeDrafts())
