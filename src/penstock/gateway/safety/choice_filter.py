"""The rules for one choice of an answer, as `stream.output_filter` applies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from penstock.gateway.safety.json_text import JsonFilter
from penstock.gateway.safety.matcher import Matcher, Step
from penstock.stream.output_filter import FilterState, PartFilter

Report = Callable[[str, str, str], None]  # rule, part, what matched


class SizeLimit(NamedTuple):
    rule: str
    characters: int


class RuleFilter:
    """A stream.ChoiceFilter. Sizes count over all parts of the choice."""

    def __init__(self, matcher: Matcher | None, size: SizeLimit | None, report: Report) -> None:
        self._matcher = matcher
        self._report = report
        self.size = size
        self.room = None if size is None else size.characters

    def part(self, kind: str) -> PartFilter:
        text = TextFilter(self, self._matcher, lambda rule, matched: self._report(rule, kind, matched))
        return JsonFilter(text) if kind == "arguments" else text


class TextFilter:
    """A stream.PartFilter of plain text."""

    def __init__(self, owner: RuleFilter, matcher: Matcher | None, report: Callable[[str, str], None]) -> None:
        self.hit: str | None = None
        self._owner = owner
        self._matcher = matcher
        self._report = report
        self.state: FilterState | None = None if matcher is None else matcher.beginning

    def push(self, text: str) -> str:
        if self._matcher is None or self.state is None:
            return self._fit(text)
        return self._take(self._matcher.step(self.state, text))

    def flush(self) -> str:
        if self._matcher is None or self.state is None or not self.state.num_held:
            return ""
        return self._take(self._matcher.end(self.state))

    def _take(self, step: Step) -> str:
        self.state = step.state
        if step.hit is None:
            return self._fit(step.shown)
        shown = self._fit(step.shown)
        if self.hit is None:
            self._end(step.hit, step.matched)
        return shown

    def _fit(self, text: str) -> str:
        """As much as the size limit leaves room for."""
        owner = self._owner
        if owner.size is None or owner.room is None:
            return text
        shown = text[: owner.room]
        owner.room -= len(shown)
        if len(shown) < len(text):
            self._end(owner.size.rule, "")
        return shown

    def _end(self, rule: str, matched: str) -> None:
        self.hit = rule
        self._report(rule, matched)
