"""The patterns of one tenant and direction, compiled into a few expressions that RE2 runs over UTF-8.

Text that arrives in pieces is matched in a window: what is held back, and one character before it, which assertions
such as `\\b` look at. All that can still become a match is held back, and nothing else. Texts of tokens repeat and
windows are short, so the steps from window to window are remembered: an automaton that grows as texts come. A text that
is new goes along the steps of its characters, of which there are few; RE2 sees what is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from penstock.errors import InvalidSetting
from penstock.gateway.safety.pattern import Analysis
from penstock.gateway.safety.spelling import has_invisible
from penstock.stream.output_filter import FilterState

MAX_MEMORY = 8 << 20  # bytes of an expression of all patterns, its automaton's cached states included
MAX_RULES_MEMORY = 64 << 20  # bytes of the expressions of single patterns, all together
MAX_WORK = 4_000_000  # program steps for one piece of text in the worst case, of some 17 ns each
MAX_STEPS = 16384  # remembered by a matcher: about 4 MB
LONG_PIECE = 256  # characters; steps of longer pieces are not remembered
LEARN_WORK = MAX_WORK // 4  # at most, for steps to be learned: a text that is not remembered is looked at once more
SLICE = 1 << 16  # bytes that are searched at once, so that a search can be ended

Expression = Any  # re2 has no types


class Pattern(NamedTuple):
    """A pattern of a rule."""

    rule: str
    source: str
    analysis: Analysis


BEGINNING = "^"  # the window of a text before anything has come


class Step(NamedTuple):
    """What becomes of a piece of text."""

    shown: str  # no match can begin in it
    state: FilterState
    hit: str | None = None  # the rule that matched; `shown` ends before the match
    matched: str = ""


class Expired(Exception):
    """A search took too long."""


def compile_expression(source: str, memory: int = MAX_MEMORY) -> Expression:
    """Raises ValueError with RE2's message."""
    import re2

    options = re2.Options()
    options.log_errors = False
    options.never_capture = True
    options.max_mem = memory
    try:
        return re2.compile(source, options)
    except re2.error as error:
        raise ValueError(error.args[0].decode() if isinstance(error.args[0], bytes) else str(error)) from None


class Matcher:
    """Shared by all requests that these patterns apply to, of which there is at least one. Texts in pieces belong to
    one thread."""

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        """Raises InvalidSetting if matching would take too much memory or time."""
        self.patterns = tuple(patterns)
        self.longest = max((pattern.analysis.longest for pattern in patterns), default=0)
        self.overlap = 4 * (self.longest + 1)  # bytes behind a slice; of a character: at most 4
        self._any: Expression = _compile(patterns)
        self._at_once = _compile([one for one in patterns if not one.analysis.looks_ahead])
        # A match of these depends on the character behind it.
        self._behind = _compile([one for one in patterns if one.analysis.looks_ahead])
        self._beginnings: Expression = _compile(patterns, beginnings=True)
        memory = min(MAX_RULES_MEMORY // max(len(patterns), 1), MAX_MEMORY)
        self._rules: list[tuple[str, Expression]] = [(one.rule, _compile([one], memory)) for one in patterns]
        self.beginning = FilterState(BEGINNING)
        self._states = {BEGINNING: self.beginning}  # with remembered steps, by window
        self._num_steps = 0
        self.search_size: int = self._any.programsize  # of `find`
        self.program_size: int = self.search_size + self._beginnings.programsize
        if (work := self.program_size * max(self.longest, 1)) > MAX_WORK:
            raise InvalidSetting(
                f"safety: matching could take too long: the patterns make programs of {self.program_size} steps, and "
                f"the longest match has {self.longest} characters; their product is {work}, at most {MAX_WORK}. "
                f"Shorten repetitions, or have fewer patterns; the largest is in the rule {_largest(patterns)!r}",
                param="safety",
            )
        self._learns = work <= LEARN_WORK

    # --- whole texts

    def find(
        self, text: str, deadline: float, clock: Callable[[], float], slice_bytes: int = SLICE
    ) -> tuple[str, str] | None:
        """The rule of the first match, and what matched. Raises Expired when `clock()` passes the deadline, which is
        looked at between slices of the text."""
        data = _encode(text)
        span = self._search(self._any, data, deadline, clock, slice_bytes)
        return None if span is None else self._name(data, *span)

    def find_all(self, text: str, deadline: float, clock: Callable[[], float]) -> list[str]:
        """The rules that match anywhere."""
        data = _encode(text)
        if self._search(self._any, data, deadline, clock) is None:
            return []
        found = [rule for rule, one in self._rules if self._search(one, data, deadline, clock) is not None]
        return list(dict.fromkeys(found))

    def _search(
        self,
        expression: Expression,
        data: bytes,
        deadline: float,
        clock: Callable[[], float],
        slice_bytes: int = SLICE,
    ) -> tuple[int, int] | None:
        for start in range(0, len(data) or 1, slice_bytes):
            if start and clock() > deadline:
                raise Expired
            if (
                match := expression.search(data, start, min(start + slice_bytes + self.overlap, len(data)))
            ) is not None:
                return match.span()  # type: ignore[no-any-return]
        return None

    def _name(self, data: bytes, start: int, end: int) -> tuple[str, str]:
        """The first rule that matches where the expression of all of them did."""
        shown = data[start:end].decode(errors="replace")
        for rule, expression in self._rules:
            if expression.match(data, start) is not None:
                return rule, shown
        return self.patterns[0].rule, shown

    # --- text in pieces

    def step(self, state: FilterState, text: str) -> Step:
        """More text."""
        if (known := state.steps.get(text)) is not None:
            return Step(*known)
        place, shown, before, may_learn = 0, "", state, self._learns
        for char in text:
            known = before.steps.get(char)
            if known is None and may_learn:
                may_learn = False  # one of a text, so that its work stays bounded
                self._remember(before, char, self._step(before.window, char, ended=False))
                known = before.steps.get(char)
            if known is None:
                break
            place, shown, before = place + 1, shown + known[0], known[1]
        if place == len(text):
            return self._remember(state, text, Step(shown, before))
        step = self._step(before.window, text[place:], ended=False)
        return self._remember(state, text, Step(shown + step.shown, *step[1:]) if shown else step)

    def learn(self, state: FilterState, text: str) -> tuple[str, FilterState] | None:
        """The step that was not known. None: it is not remembered."""
        if not self._learns or state.num_held > LONG_PIECE:
            return None
        self.step(state, text)
        return state.steps.get(text)

    def _remember(self, state: FilterState, text: str, step: Step) -> Step:
        """Hits are rare, and hold what must not be kept. Text with invisible characters is looked at twice."""
        if (
            step.hit is not None
            or max(len(text), step.state.num_held) > LONG_PIECE
            or has_invisible(state.window + text)
        ):
            return step
        if self._num_steps >= MAX_STEPS:
            self._forget_steps()
        next_state = self._states.setdefault(step.state.window, step.state)
        state.steps[text] = (step.shown, next_state)
        self._num_steps += 1
        return Step(step.shown, next_state)

    def state_after(self, text: str) -> FilterState:
        """Of a text that goes on after this one, which is not looked at itself: matches within it are none."""
        data = _encode(text)
        start = self._beginnings.search(data).start()
        while (match := self._any.search(data, start)) is not None:
            start = match.start() + 1
            while start < len(data) and data[start] & 0xC0 == 0x80:
                start += 1
            start = self._beginnings.search(data, start).start()
        place = _characters(data[:start])
        return FilterState((_standing_for(text[place - 1]) if place else BEGINNING) + text[place:])

    def make_match(self, before: bytes, texts: Sequence[bytes]) -> list[bool]:
        """Of each text, whether it would make a match after `before`, which has none."""
        start = self._beginnings.search(before).start()
        return [self._any.search(before + text, start) is not None for text in texts]

    def end(self, state: FilterState) -> Step:
        """The text has ended."""
        return self._step(state.window, "", ended=True)

    def _forget_steps(self) -> None:
        """Texts go on from states that are not among the new ones: each leaves its state with its next piece."""
        for state in self._states.values():
            state.forget()
        self._states, self._num_steps = {BEGINNING: self.beginning}, 0

    def _step(self, window: str, piece: str, *, ended: bool) -> Step:
        context, held = window[0], window[1:]
        text = held + piece
        begin = int(context != BEGINNING)
        data = _encode(context[:begin] + text)
        if (span := self._match(data, begin, ended=ended)) is not None:
            rule, matched = self._name(data, *span)
            # A longer match may have begun before this one: nothing of it is shown either.
            started = self._beginnings.search(data[: span[1]], begin).start()
            return Step(text[: _characters(data[begin : min(span[0], started)])], self.beginning, rule, matched)
        if ended:
            return Step(text, self.beginning)
        held_from = _characters(data[begin : self._beginnings.search(data, begin).start()])
        if not held_from:
            return Step("", FilterState(context + text))
        shown = piece if not held and held_from == len(piece) else text[:held_from]  # most often the piece itself
        return Step(shown, FilterState(_standing_for(text[held_from - 1]) + text[held_from:]))

    def _match(self, data: bytes, begin: int, *, ended: bool) -> tuple[int, int] | None:
        if ended:
            found = [self._any.search(data, begin)]
        else:
            found = [] if self._at_once is None else [self._at_once.search(data, begin)]
            if self._behind is not None and len(data) > begin:
                last = _start_of_last_character(data)
                found.append(self._behind.search(data, begin, max(last, begin)))
        return min((match.span() for match in found if match is not None), default=None)


def _compile(patterns: Sequence[Pattern], memory: int = MAX_MEMORY, *, beginnings: bool = False) -> Expression:
    """As alternatives; with `beginnings`, of texts that end in the beginning of a match. None: there are none."""
    if not patterns:
        return None
    if beginnings:
        source = f"(?:{'|'.join(one.analysis.beginnings for one in patterns)})\\z"
    else:
        source = "|".join(f"(?:{one.source})" for one in patterns)
    try:
        return compile_expression(source, memory)
    except ValueError as error:
        raise InvalidSetting(
            f"safety: the patterns are too large together ({error}); the largest is in the rule {_largest(patterns)!r}",
            param="safety",
        ) from None


def _largest(patterns: Sequence[Pattern]) -> str:
    """The rule of the pattern that most probably is too large."""
    return max(patterns, key=lambda one: one.analysis.longest * len(one.source)).rule


def _encode(text: str) -> bytes:
    """Half a surrogate pair becomes a question mark: RE2 would not take it."""
    return text.encode(errors="replace")


def _characters(data: bytes) -> int:
    return len(data) if data.isascii() else len(data.decode())


def _start_of_last_character(data: bytes) -> int:
    place = len(data) - 1
    while place > 0 and data[place] & 0xC0 == 0x80:
        place -= 1
    return place


def _standing_for(char: str) -> str:
    """A character of the same kind for assertions: few windows differ, so that steps can be remembered."""
    if char == "\n":
        return char
    return "a" if char == "_" or (char.isascii() and char.isalnum()) else " "
