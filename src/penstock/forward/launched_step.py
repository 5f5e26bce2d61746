"""A step between launch and collect."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from penstock.flow import FinishReason, Row, RowResult, StepResult
from penstock.forward.pooling import Pooled
from penstock.sample.constraints import StepConstraints
from penstock.sample.logprobs import Logprobs
from penstock.sample.reports import Reports


class TokenReader(Protocol):
    """Tokens, or counts of them, on their way to the host."""

    def tolist(self) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """Its results may still be on the device."""

    number: int
    rows: list[Row]
    tokens: TokenReader | list[int] | None  # drawn by the rows, in order
    reports: Reports | None  # None: nothing comes along with the tokens
    prompts: dict[int, list[Logprobs]]  # by row
    pooled: Pooled | None
    kept: TokenReader | list[int] | None = None  # [rows] how many draws of each count; None: no row has drafts
    drafts: Mapping[int, list[int]] = field(default_factory=dict)  # by slot
    audit: tuple[int, int] = (0, 0)  # as StepResult has it

    def result(self) -> StepResult:
        """Waits for the device."""
        if self.kept is not None:
            return self._drafted_result(_read(self.kept))
        tokens = iter(self._token_list() if self.tokens is not None else ())
        results = [RowResult([next(tokens)] if row.draws else []) for row in self.rows]
        for row, parts in self.prompts.items():
            results[row].prompt_logprobs = [entry for part in parts for entry in part.entries()]
        if self.reports is not None:
            self._add_reports(self.reports, [result for result in results if result.tokens])
        self._add_embeddings(results)
        return StepResult(self.number, results)

    def _drafted_result(self, kept: list[int]) -> StepResult:
        drawn, results, place = self._token_list(), [], 0
        sampled: dict[int, tuple[RowResult, int]] = {}  # by row of the logits, if it counts: where its token is
        for row, count in zip(self.rows, kept, strict=True):
            result = RowResult(drawn[place : place + count], drafts=self.drafts.get(row.slot, []))
            sampled |= {place + index: (result, index) for index in range(count)}
            results.append(result)
            place += row.draws
        for index, parts in self.prompts.items():
            results[index].prompt_logprobs = [entry for part in parts for entry in part.entries()]
        if (reports := self.reports) is not None:
            assert not reports.inspected
            if reports.logprobs is not None:
                for place, entry in zip(reports.logprob_rows, reports.logprobs.entries(), strict=True):
                    if place in sampled:
                        result = sampled[place][0]
                        result.logprobs = [*(result.logprobs or ()), entry]
            if reports.constraints is not None:
                self._end_drafted(reports.constraints, sampled)
        self._add_embeddings(results)
        return StepResult(self.number, results, *self.audit)

    def _end_drafted(self, constraints: StepConstraints, sampled: dict[int, tuple[RowResult, int]]) -> None:
        for row, finish in constraints.settle(self._token_list(), sampled).items():
            result, index = sampled[row]
            count = index if row in constraints.finishes else index + 1  # where no token was allowed, none counts
            result.tokens, result.finish = result.tokens[:count], finish
            if result.logprobs is not None:
                result.logprobs = result.logprobs[:count] or None

    def _add_embeddings(self, results: list[RowResult]) -> None:
        if self.pooled is not None:
            for row, embedding in zip(self.pooled.rows, self.pooled.packed(), strict=True):
                results[row].embedding = embedding

    def finishes(self) -> dict[int, FinishReason]:
        """The sampled rows whose sequences end by their constraint. Advances the constraint matchers; waits for the
        device if there are any."""
        if self.reports is None or self.reports.constraints is None:
            return {}
        return self.reports.constraints.settle(self._token_list(), self._kept_places())

    def _kept_places(self) -> set[int] | None:
        """The rows of the logits that count; None: all."""
        if self.kept is None:
            return None
        places: set[int] = set()
        first = 0
        for row, count in zip(self.rows, _read(self.kept), strict=True):
            places.update(range(first, first + count))
            first += row.draws
        return places

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
        return _read(self.tokens)


def _read(values: TokenReader | list[int]) -> list[int]:
    return values if isinstance(values, list) else values.tolist()
