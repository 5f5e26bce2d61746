"""A step under way, as runners keep it until it is collected."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.flow import FinishReason, Row, RowResult, StepResult
from penstock.forward.pooling import Pooled
from penstock.forward.readback import Readback
from penstock.sample import Draws, Logprobs


@dataclass(frozen=True, slots=True)
class Launched:
    """What the step will answer is on the device."""

    number: int
    rows: list[Row]
    tokens: Readback | list[int] | None  # of the rows with `sample`, in order
    draws: Draws | None  # where they came from, if log-probabilities may have come along
    prompts: dict[int, list[Logprobs]]  # by row
    pooled: Pooled | None

    def result(self) -> StepResult:
        """Waits for the device."""
        tokens = iter(self._listed() if self.tokens is not None else ())
        results = [RowResult([next(tokens)] if row.sample else []) for row in self.rows]
        for row, parts in self.prompts.items():
            results[row].prompt_logprobs = [entry for part in parts for entry in part.listed()]
        if self.draws is not None:
            self._tell(self.draws, [result for result in results if result.tokens])
        if self.pooled is not None:
            for row, embedding in zip(self.pooled.rows, self.pooled.packed(), strict=True):
                results[row].embedding = embedding
        return StepResult(self.number, results)

    def ended(self) -> dict[int, FinishReason]:
        """The draws that end their sequences by a constraint, whose matchers have seen them then. Waits for the device
        if there is a constraint."""
        if self.draws is None or self.draws.masked is None:
            return {}
        return self.draws.masked.settle(self._listed())

    def _tell(self, draws: Draws, sampled: list[RowResult]) -> None:
        """What came along with the tokens."""
        for row, finish in self.ended().items():
            sampled[row].finish = finish
        for row, entry in zip(draws.logprob_rows, draws.logprobs.listed() if draws.logprobs else (), strict=True):
            sampled[row].logprobs = [entry]
        for row, inspected in draws.inspected.items():
            sampled[row].inspection = inspected.told(sampled[row].tokens[0])
        for row in draws.masked.finishes if draws.masked else ():  # they had nothing to draw from
            sampled[row].tokens, sampled[row].logprobs = [], None

    def _listed(self) -> list[int]:
        assert self.tokens is not None
        return self.tokens if isinstance(self.tokens, list) else self.tokens.listed()
