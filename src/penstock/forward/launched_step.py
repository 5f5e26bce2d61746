"""A step between launch and collect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from penstock.flow import FinishReason, Row, RowResult, StepResult
from penstock.forward.pooling import Pooled
from penstock.sample.logprobs import Logprobs
from penstock.sample.reports import Reports


class TokenReader(Protocol):
    """Tokens on their way to the host."""

    def tolist(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Its results may still be on the device."""

    number: int
    rows: list[Row]
    tokens: TokenReader | list[int] | None  # of the rows with `sample`, in order
    reports: Reports | None  # None: nothing comes along with the tokens
    prompts: dict[int, list[Logprobs]]  # by row
    pooled: Pooled | None

    def result(self) -> StepResult:
        """Waits for the device."""
        tokens = iter(self._token_list() if self.tokens is not None else ())
        results = [RowResult([next(tokens)] if row.sample else []) for row in self.rows]
        for row, parts in self.prompts.items():
            results[row].prompt_logprobs = [entry for part in parts for entry in part.entries()]
        if self.reports is not None:
            self._add_reports(self.reports, [result for result in results if result.tokens])
        if self.pooled is not None:
            for row, embedding in zip(self.pooled.rows, self.pooled.packed(), strict=True):
                results[row].embedding = embedding
        return StepResult(self.number, results)

    def finishes(self) -> dict[int, FinishReason]:
        """The sampled rows whose sequences end by their constraint. Advances the constraint matchers; waits for the
        device if there are any."""
        if self.reports is None or self.reports.constraints is None:
            return {}
        return self.reports.constraints.settle(self._token_list())

    def _add_reports(self, reports: Reports, sampled: list[RowResult]) -> None:
        for row, finish in self.finishes().items():
            sampled[row].finish = finish
        if reports.logprobs is not None:
            for row, entry in zip(reports.logprob_rows, reports.logprobs.entries(), strict=True):
                sampled[row].logprobs = [entry]
        for row, inspected in reports.inspected.items():
            sampled[row].inspection = inspected.inspection(sampled[row].tokens[0])
        for row in reports.constraints.finishes if reports.constraints else ():  # no token was allowed
            sampled[row].tokens, sampled[row].logprobs = [], None

    def _token_list(self) -> list[int]:
        assert self.tokens is not None
        return self.tokens if isinstance(self.tokens, list) else self.tokens.tolist()
