"""Rules for what leaves: chunks pass through a filter that holds text back while it may become a match, as stop strings
do. A match ends the answer with CONTENT_FILTER, and nothing of it is shown.

    Chunk ─► text | reasoning | arguments ─► PartFilter ─► Chunk

A filter sees what the client would see: answer and reasoning without their markers, and each call's arguments. A match
does not span these parts. Token ids and log-probabilities follow their text: they are held back with it.

Single tokens of text take a short way (`push_token`) where the filter knows the step that their text makes or can learn
it: one look-up, as long as the tokens are of one vocabulary, else two. A match is never such a step. The account of
these tokens is made up when the next chunk comes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Protocol

from penstock.flow import CallDelta, Chunk, FinishReason, TokenLogprobs
from penstock.stream.choice import NO_TEXTS, ChoiceStream


class FilterState:
    """Where a filter of text stands, and what is known of the texts that may come next."""

    __slots__ = ("num_held", "steps", "texts", "token_steps", "window")

    def __init__(self, window: str) -> None:
        """`window`: one character that stands for what came before, then what is held back."""
        self.window = window
        self.num_held = len(window) - 1
        self.steps: dict[str, tuple[str, FilterState]] = {}  # by text: what is shown then, and the next state
        self.texts: Mapping[int, str] | None = None  # of the first vocabulary whose tokens came in this state,
        self.token_steps: dict[int, tuple[str, FilterState]] = {}  # and the steps of these, by token

    def forget(self) -> None:
        self.steps.clear()
        self.token_steps.clear()
        self.texts = None


CLOSED = FilterState("^")  # of a text that cannot take the short way: no step is ever known


class PartFilter(Protocol):
    """Of one part of one choice, from its beginning to its end."""

    state: FilterState | None  # None: only `push` knows what becomes of text

    @property
    def hit(self) -> str | None:
        """The rule that matched: nothing more is shown."""

    def push(self, text: str) -> str:
        """The text that is safe to show now."""

    def flush(self) -> str:
        """The part has ended: what was held back, unless it is a match."""


class ChoiceFilter(Protocol):
    """The rules for one choice."""

    room: int | None  # characters that may still be shown; None: any number

    def part(self, kind: str) -> PartFilter:
        """Of a part that begins: "text", "reasoning", the "arguments" of a call, or its "name", which comes whole."""

    def learn(self, state: FilterState, text: str) -> tuple[str, FilterState] | None:
        """The step of a text that is not among those of `state`, a state of the text. None: only `push` of the part
        knows what becomes of it."""

    def hide_alternatives(self, entries: list[TokenLogprobs]) -> list[TokenLogprobs]:
        """Log-probabilities of tokens that are shown, in their order, without alternatives that may not be shown."""


class _Run:
    """A part that has begun, and how much of it is held back."""

    __slots__ = ("filter", "held", "held_from")

    def __init__(self, part_filter: PartFilter) -> None:
        self.filter = part_filter
        self.held = 0  # characters
        self.held_from = 0  # where these begin in all output of the choice


class _Pending:
    """Tokens that wait until their text is shown."""

    __slots__ = ("end", "logprobs", "tokens")

    def __init__(self, tokens: list[int], logprobs: list[TokenLogprobs] | None, end: int | None) -> None:
        self.tokens = tokens
        self.logprobs = logprobs
        self.end = end  # of their text in all output; None: part of their text has not come yet


class OutputFilter:
    """Of one choice. Chunks of the choice go in, chunks for the client come out."""

    __slots__ = (
        "_choice", "_fixed_texts", "_hit", "_num_tokens", "_pending", "_rules", "_runs", "_seen", "_short_chars",
        "_shown_arguments", "_shown_reasoning", "_shown_text", "_shown_tokens", "_state", "_token_texts",
        "_tokens",
    )  # fmt: skip

    def __init__(self, choice: ChoiceStream, rules: ChoiceFilter) -> None:
        self._choice = choice
        self._rules = rules
        self._runs: dict[str | int, _Run] = {}  # open parts: "text", "reasoning", or the index of a call
        self._seen = 0  # characters of output
        self._shown_text = self._shown_reasoning = self._shown_tokens = 0
        self._shown_arguments: dict[int, int] = {}  # characters, by call
        self._pending: deque[_Pending] = deque()
        self._hit: str | None = None
        self._num_tokens = 0  # of the choice that are accounted for,
        self._short_chars = 0  # and of their characters those that came the short way
        self._fixed_texts = NO_TEXTS  # of tokens that can take the short way now
        self._state = CLOSED  # of the text then
        self._token_texts: Mapping[int, str] = {}  # the same texts while steps of tokens can be used
        self._tokens = choice.tokens

    def push_token(self, token: int) -> str | None:
        """The short way of one further token: returns the text to show. None, with nothing changed: it needs `push`."""
        state = self._state
        if state.texts is self._token_texts and (step := state.token_steps.get(token)) is not None:
            shown, self._state = step
            self._tokens.append(token)
            return shown
        return self._push_text_of(token)

    def _push_text_of(self, token: int) -> str | None:
        """The same for a token whose step in this state is not known."""
        text = self._fixed_texts.get(token)
        if not text:
            if text is not None:  # of a special token
                self._choice.tokens.append(token)
            return text
        before = self._state
        if (step := before.steps.get(text)) is None and (step := self._rules.learn(before, text)) is None:
            return None
        if before.texts is None:
            before.texts = self._fixed_texts
        if before.texts is self._fixed_texts:
            before.token_steps[token] = step
        shown, state = step
        if (room := self._rules.room) is not None:
            if len(shown) > room:
                return None
            self._rules.room = room - len(shown)
        self._state = state
        self._choice.tokens.append(token)
        return shown

    def push(self, chunk: Chunk, *, settled: bool) -> Chunk | None:
        """What of it may be shown, with what was held back before. `settled`: all text of its tokens has come."""
        if self._is_hit():
            return None
        self._account_for_tokens(len(self._choice.tokens) - len(chunk.tokens))
        self._num_tokens = len(self._choice.tokens)
        ended = chunk.finish is not None
        reasoning, text, calls = "", "", []
        if chunk.reasoning:
            reasoning = self._push("reasoning", chunk.reasoning)
        if chunk.text:
            reasoning += self._close("reasoning")
            text = self._push("text", chunk.text)
        for piece in chunk.calls:
            if piece.id is not None:
                reasoning += self._close("reasoning")
                text += self._close("text")
                calls += self._close_calls()
                self._check_name(piece.name or "")
            if not self._is_hit():
                calls.append(self._push_call(piece))
        if ended:
            reasoning += self._close("reasoning")
            text += self._close("text")
            calls += self._close_calls()
        self._shown_reasoning += len(reasoning)
        self._shown_text += len(text)
        tokens, logprobs = self._release(chunk, settled=settled or ended)
        if self._hit is not None:
            self._cut()
        self._open_short_way(settled=settled and not ended)
        finish, stop = (FinishReason.CONTENT_FILTER, self._hit) if self._hit is not None else (chunk.finish, chunk.stop)
        if not (text or reasoning or calls or tokens or finish or chunk.prompt_logprobs):
            return None
        shown = tuple(calls)
        hidden = self._choice.hidden_tokens
        return Chunk(
            chunk.choice, text, tokens, logprobs, finish, stop, reasoning, shown, chunk.prompt_logprobs, hidden
        )  # fmt: skip

    def _open_short_way(self, *, settled: bool) -> None:
        run = self._runs.get("text") if settled and len(self._runs) == 1 and self._hit is None else None
        self._state = (None if run is None else run.filter.state) or CLOSED
        self._fixed_texts = NO_TEXTS if self._state is CLOSED else self._choice.fixed_texts
        self._token_texts = self._fixed_texts if self._rules.room is None else {}
        self._tokens = self._choice.tokens

    def _account_for_tokens(self, end: int) -> None:
        """Of the tokens up to `end` that took the short way."""
        if end == self._num_tokens or self._state is CLOSED:
            return
        run, texts, tokens = self._runs["text"], self._fixed_texts, self._choice.tokens
        length = self._choice.short_chars - self._short_chars
        self._short_chars = self._choice.short_chars
        held_before, run.held = run.held, self._state.num_held
        self._seen += length
        self._shown_text += length + held_before - run.held
        run.filter.state, run.held_from = self._state, self._seen - run.held
        place = self._seen
        waiting: list[_Pending] = []
        while end > self._num_tokens and place > run.held_from:  # their text is held back, or part of it
            end -= 1
            waiting.append(_Pending([tokens[end]], None, place))
            place -= len(texts[tokens[end]])
        self._shown_tokens += end - self._num_tokens
        self._pending.extend(reversed(waiting))

    def _is_hit(self) -> bool:
        return self._hit is not None

    def _push(self, kind: str | int, text: str) -> str:
        if self._is_hit():
            return ""
        run = self._runs.get(kind)
        if run is None:
            run = self._runs[kind] = _Run(self._rules.part("arguments" if isinstance(kind, int) else kind))
        shown = run.filter.push(text)
        self._seen += len(text)
        held = run.held + len(text) - len(shown)
        run.held_from = self._seen - held if held <= len(text) else run.held_from + len(shown)
        run.held = held
        self._hit = run.filter.hit
        return shown

    def _close(self, kind: str | int) -> str:
        run = self._runs.get(kind) if self._hit is None else None
        if run is None:
            return ""
        shown = run.filter.flush() if run.held else ""
        self._hit = run.filter.hit
        if self._hit is None:
            del self._runs[kind]
        else:
            run.held, run.held_from = run.held - len(shown), run.held_from + len(shown)
        return shown

    def _check_name(self, name: str) -> None:
        if not self._is_hit():
            rules = self._rules.part("name")
            rules.push(name)
            rules.flush()
            self._hit = rules.hit

    def _push_call(self, piece: CallDelta) -> CallDelta:
        shown = self._push(piece.index, piece.arguments) if piece.arguments else ""
        return self._call(piece.index, shown, piece.id, piece.name)

    def _close_calls(self) -> list[CallDelta]:
        closed = [(index, self._close(index)) for index in list(self._runs) if isinstance(index, int)]
        return [self._call(index, arguments) for index, arguments in closed if arguments]

    def _call(self, index: int, arguments: str, name_id: str | None = None, name: str | None = None) -> CallDelta:
        self._shown_arguments[index] = self._shown_arguments.get(index, 0) + len(arguments)
        return CallDelta(index=index, id=name_id, name=name, arguments=arguments)

    def _release(self, chunk: Chunk, *, settled: bool) -> tuple[list[int], list[TokenLogprobs] | None]:
        """The tokens whose text is shown."""
        if settled and self._hit is None and not self._pending and not any(run.held for run in self._runs.values()):
            tokens, logprobs = chunk.tokens, chunk.logprobs
        else:
            tokens, logprobs = self._release_pending(chunk, settled=settled)
        if logprobs and self._choice.logprobs is not None:
            logprobs = self._rules.hide_alternatives(logprobs)
            self._choice.logprobs[self._shown_tokens : self._shown_tokens + len(logprobs)] = logprobs
        self._shown_tokens += len(tokens)
        return tokens, logprobs

    def _release_pending(self, chunk: Chunk, *, settled: bool) -> tuple[list[int], list[TokenLogprobs] | None]:
        if chunk.tokens:
            self._pending.append(_Pending(chunk.tokens, chunk.logprobs, None))
        if settled:
            for one in self._pending:
                one.end = self._seen if one.end is None else one.end
        safe = min((run.held_from for run in self._runs.values() if run.held), default=self._seen)
        if self._hit is not None:  # of the chunk with the match, it is not known which tokens come before it
            safe = min(safe, self._seen - len(chunk.text) - len(chunk.reasoning) - _length(chunk.calls))
        tokens: list[int] = []
        logprobs: list[TokenLogprobs] | None = None if chunk.logprobs is None else []
        while self._pending and (end := self._pending[0].end) is not None and end <= safe:
            one = self._pending.popleft()
            tokens += one.tokens
            if logprobs is not None:
                logprobs += one.logprobs or ()
        return tokens, logprobs

    def _cut(self) -> None:
        """Take from the choice what is not shown."""
        assert self._hit is not None
        self._pending.clear()
        self._choice.cut(
            self._hit,
            text=self._shown_text,
            reasoning=self._shown_reasoning,
            arguments=self._shown_arguments,
            tokens=self._shown_tokens,
        )


def _length(calls: tuple[CallDelta, ...]) -> int:
    return sum(len(piece.arguments) for piece in calls)
