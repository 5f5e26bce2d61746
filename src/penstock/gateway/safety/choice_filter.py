"""The rules for one choice of an answer, as `stream.output_filter` applies them."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from penstock.flow import TokenLogprobs
from penstock.gateway.safety.json_text import split_characters, unescape
from penstock.gateway.safety.matcher import Matcher, Step
from penstock.gateway.safety.piece_filter import PieceFilter
from penstock.gateway.safety.spelling import has_invisible, last_character, split_visible
from penstock.stream.output_filter import FilterState, PartFilter

Report = Callable[[str, str, str], None]  # rule, part, what matched


class SizeLimit(NamedTuple):
    rule: str
    characters: int


class Context(NamedTuple):
    """What rules have to know of a request beside its answer."""

    prompt: str = ""  # that the answer goes on after, without a template between them; its end is enough
    token_bytes: Callable[[int], bytes] | None = None  # of the model's vocabulary


class RuleFilter:
    """A stream.ChoiceFilter. Sizes count over all parts of the choice."""

    def __init__(
        self, matcher: Matcher | None, size: SizeLimit | None, report: Report, context: Context | None = None
    ) -> None:
        self._matcher = matcher
        self._report = report
        self._prompt, self._token_bytes = context or Context()
        # The tokens before the next log-probabilities, as far as matches may begin in them.
        self._before = self._prompt.encode(errors="replace")
        self.size = size
        self.room = None if size is None else size.characters

    def part(self, kind: str) -> PartFilter:
        def report(rule: str, matched: str) -> None:
            self._report(rule, kind, matched)

        if kind == "name":  # no size counts it
            return TextFilter(RuleFilter(self._matcher, None, self._report), self._matcher, report)
        prompt, self._prompt = self._prompt, ""
        text = TextFilter(self, self._matcher, report, prompt if kind == "text" else "")
        return PieceFilter(text, split_characters, unescape) if kind == "arguments" else text

    def learn(self, state: FilterState, text: str) -> tuple[str, FilterState] | None:
        return None if self._matcher is None else self._matcher.learn(state, text)

    def hide_alternatives(self, entries: list[TokenLogprobs]) -> list[TokenLogprobs]:
        """Log-probabilities of tokens that are shown, without alternatives that would have made a match."""
        token_bytes, matcher = self._token_bytes, self._matcher
        if token_bytes is None or matcher is None:
            return entries
        shown = []
        for entry in entries:
            hidden = matcher.make_match(self._before, [token_bytes(token) for token, _ in entry.top])
            top = [one for one, hide in zip(entry.top, hidden, strict=True) if one[0] == entry.token or not hide]
            shown.append(entry if len(top) == len(entry.top) else msgspec.structs.replace(entry, top=top))
            self._before = (self._before + token_bytes(entry.token))[-4 * (matcher.longest + 1) :]
        return shown


class TextFilter:
    """A stream.PartFilter of plain text. Text with invisible characters passes the rules twice: as it is, and without
    them."""

    def __init__(
        self, owner: RuleFilter, matcher: Matcher | None, report: Callable[[str, str], None], prompt: str = ""
    ) -> None:
        """`prompt`: that the text goes on after."""
        self.hit: str | None = None
        self._owner = owner
        self._matcher = matcher
        self._report = report
        self._as_is = None if matcher is None else MatchFilter(matcher, prompt)
        self._visible: PieceFilter | None = None  # while it holds text back
        self._again: MatchFilter | None = None  # that it passes the visible text to

    @property
    def state(self) -> FilterState | None:
        return None if self._as_is is None or self._visible is not None else self._as_is.open_state

    @state.setter
    def state(self, state: FilterState | None) -> None:
        assert self._as_is is not None
        assert state is not None
        self._as_is.state = state

    def push(self, text: str) -> str:
        if self._as_is is None:
            return self._fit(text)
        context = self._as_is.state.window[0]
        return self._fit(self._show(self._as_is.push(text), context))

    def flush(self) -> str:
        if self._as_is is None:
            return ""
        context = self._as_is.state.window[0]
        shown = self._show(self._as_is.flush(), context)
        if self._visible is not None and self.hit is None:
            shown += self._visible.flush()
            self._note_hit(self._again)
        return self._fit(shown)

    def _show(self, text: str, context: str) -> str:
        """Of text that is shown as it is; `context` stands for what came before it."""
        self._note_hit(self._as_is)
        if self._visible is None:
            if not has_invisible(text):
                return text
            assert self._matcher is not None
            self._again = MatchFilter(self._matcher)
            self._again.state = FilterState(context)
            self._visible = PieceFilter(self._again, split_visible, last_character)
        shown = self._visible.push(text)
        self._note_hit(self._again)
        if not self._visible.holds_text:
            self._visible = None
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

    def _note_hit(self, one: MatchFilter | None) -> None:
        if one is not None and one.hit is not None:
            self._end(one.hit, one.matched)

    def _end(self, rule: str, matched: str) -> None:
        if self.hit is None:
            self.hit = rule
            self._report(rule, matched)


class MatchFilter:
    """Text as a matcher reads it."""

    def __init__(self, matcher: Matcher, prompt: str = "") -> None:
        self.hit: str | None = None
        self.matched = ""  # then
        self.state = matcher.state_after(prompt[-matcher.longest - 1 :]) if prompt else matcher.beginning
        self._prompt_left = self.state.num_held  # characters of the prompt that would be shown with the text
        self._matcher = matcher

    @property
    def open_state(self) -> FilterState | None:
        """None while part of the prompt is in the window."""
        return None if self._prompt_left else self.state

    def push(self, text: str) -> str:
        return self._take(self._matcher.step(self.state, text))

    def flush(self) -> str:
        return self._take(self._matcher.end(self.state)) if self.state.num_held else ""

    def _take(self, step: Step) -> str:
        self.state = step.state
        shown = step.shown[self._prompt_left :]
        self._prompt_left = max(self._prompt_left - len(step.shown), 0)
        self.hit, self.matched = step.hit, step.matched
        return shown
