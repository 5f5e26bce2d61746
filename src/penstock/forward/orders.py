"""What the requests in the slots want made of a step, whichever runner computes it: tokens, log-probabilities,
embeddings. And the steps themselves, until they are collected."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from penstock.flow import Admit, Row, StepResult
from penstock.forward.in_flight import Launched
from penstock.forward.pooling import Embedders, Pooled
from penstock.forward.prompt_logprobs import Prompts
from penstock.sample import Constraints, Draws, Logprobs, Sampler
from penstock.sample.sampler import Replay

if TYPE_CHECKING:
    from penstock.grammar.grammar_cache import GrammarCache


class Orders:
    """One for each runner. What it keeps of a slot begins with an Admit."""

    def __init__(
        self,
        vocab_size: int,
        tokens: Tensor,
        grammars: GrammarCache | None,
        *,
        natively: bool = False,
        most_rows: int | None = None,
    ) -> None:
        """`tokens` [slots, context] are the slot rows. `natively` is as in Sampler, `most_rows` as in Prompts."""
        self.sampler = (
            Sampler(vocab_size, tokens, natively=natively) if tokens.is_cpu else _on_device(vocab_size, tokens)
        )
        self._constraints = Constraints(vocab_size, grammars)
        self._prompts = Prompts(vocab_size, tokens, most_rows)
        self._embedders = Embedders()
        self._launched: deque[Launched] = deque()

    def admit(self, admits: Sequence[Admit]) -> None:
        for admit in admits:
            self.sampler.admit(admit)
            self._constraints.admit(admit)
            self._prompts.admit(admit)
            self._embedders.admit(admit)

    def wants_hidden(self, rows: Sequence[Row]) -> bool:
        """Whether `read` wants more of these rows' hidden states than what tokens are drawn from."""
        return self._prompts.concern(rows) or self._embedders.concern(rows)

    def read(
        self, rows: Sequence[Row], starts: Sequence[int], hidden: Tensor, logits: Callable[[int, int], Tensor]
    ) -> tuple[dict[int, list[Logprobs]], Pooled | None]:
        """Log-probabilities of prompts, and embeddings. `hidden` [tokens, hidden] are a step's, in which row r begins
        at `starts[r]`, and good until `logits(first, end)` is asked for those of a range of them."""
        pooled = self._embedders.take(rows, hidden, starts)
        return self._prompts.measure(rows, starts, logits), pooled

    def draw(
        self, logits: Tensor, slots: Sequence[int], positions: Sequence[int], replay: Replay | None = None
    ) -> Draws:
        """As `Sampler.sample`, with the constraints' masks. Waits for the step before, if there are any."""
        masked = self._constraints.mask(slots, positions, before=self._settle_matchers)
        return self.sampler.sample(logits, slots, positions, masked, replay)

    def launched(self, step: Launched) -> None:
        """Keep it until it is collected."""
        self._launched.append(step)

    def collect(self) -> StepResult:
        """Of the oldest step. Waits for the device."""
        return self._launched.popleft().result()

    def reset(self) -> None:
        """No step will be collected."""
        self._launched.clear()

    def _settle_matchers(self) -> None:
        """Let the matchers of constraints see what the steps in flight have drawn."""
        for launched in self._launched:
            launched.ended()


def _on_device(vocab_size: int, tokens: Tensor) -> Sampler:
    from penstock.sample.cuda_sampler import CudaSampler

    return CudaSampler(vocab_size, tokens)
