"""What requests get of a step beside sampled tokens: constraint masks before the draw, prompt log-probabilities and
embeddings after it; and the queue of launched steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.flow import Admit, Row, StepResult
from penstock.forward.hidden_states import HiddenStates
from penstock.forward.launched_step import LaunchedStep
from penstock.forward.pooling import Embedders, Pooled
from penstock.forward.prompt_logprobs import PromptLogprobs
from penstock.sample.constraints import NO_DRAFTS, Constraints, StepConstraints
from penstock.sample.logprobs import Logprobs

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache


class StepOutputs:
    """One per backend. An Admit replaces what it holds for the slot."""

    def __init__(self, vocab_size: int, grammars: GrammarCache | None, *, most_logit_rows: int | None = None) -> None:
        """`most_logit_rows` as in PromptLogprobs."""
        self._constraints = Constraints(vocab_size, grammars)
        self._prompts = PromptLogprobs(vocab_size, most_logit_rows)
        self._embedders = Embedders()
        self._launched: deque[LaunchedStep] = deque()

    def admit(self, admit: Admit) -> None:
        self._constraints.admit(admit)
        self._prompts.admit(admit)
        self._embedders.admit(admit)

    def needs_hidden(self, rows: Sequence[Row]) -> bool:
        """Whether `read` needs more hidden states of these rows than sampling does."""
        return self._prompts.include_any(rows) or self._embedders.include_any(rows)

    def read(
        self, rows: Sequence[Row], starts: Sequence[int], hidden: HiddenStates
    ) -> tuple[dict[int, list[Logprobs]], Pooled | None]:
        """Prompt log-probabilities by row, and embeddings. Row r begins at `starts[r]` of `hidden`."""
        pooled = self._embedders.add(rows, hidden, starts)
        return self._prompts.measure(rows, starts, hidden), pooled

    def has_constraint(self, slot: int) -> bool:
        return self._constraints.has(slot)

    def allowed_length(self, slot: int, drafts: list[int]) -> int:
        """How many of the drafts its constraint allows; all, if it has none. Waits as `constraints` does."""
        if self._constraints.has(slot):
            self._advance_matchers()
        return self._constraints.allowed_length(slot, drafts)

    def constraints(
        self, slots: Sequence[int], positions: Sequence[int], drafts: Mapping[int, list[int]] = NO_DRAFTS
    ) -> StepConstraints | None:
        """Masks of the rows with a constraint, as `Constraints.mask`. If there are any, waits for the tokens of the
        step before."""
        return self._constraints.mask(slots, positions, self._advance_matchers, drafts)

    def push(self, step: LaunchedStep) -> None:
        """Queue it until it is collected."""
        self._launched.append(step)

    def collect(self) -> StepResult:
        """Of the oldest step. Waits for the device."""
        return self._launched.popleft().result()

    def reset(self) -> None:
        """Drop all launched steps."""
        self._launched.clear()

    def _advance_matchers(self) -> None:
        """Feed the constraint matchers with the tokens of launched steps."""
        for step in self._launched:
            step.finishes()
