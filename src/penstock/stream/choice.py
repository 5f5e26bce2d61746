"""One choice on its way out: Deltas in, Chunks out, and the whole answer at the end.

    tokens ─► text ─► reasoning | text | calls        text ─► stop strings

Stop strings count in the text that is meant for the reader, not in the reasoning and not in calls.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from penstock.flow import (
    CallDelta,
    Choice,
    Chunk,
    Delta,
    DraftedStep,
    FinishReason,
    OutputFormat,
    SamplingParams,
    TextStream,
    Timings,
    TokenLogprobs,
    ToolCall,
)
from penstock.stream.output_parser import OutputParser, Part
from penstock.stream.stops import StopMatcher

# Their last token ended the sequence; it counts as output, but its text is not part of the answer unless asked for.
_BY_TOKEN = (FinishReason.END, FinishReason.STOP_TOKEN)


NO_TEXTS: Mapping[int, str] = {}


class ChoiceStream:
    """One choice. `finish` is set once the client has all of it, `done` once the engine has let go of it too.

    Single tokens whose text depends on nothing else take a short way (`push_token`), which only adds to `tokens`: their
    text follows from them.
    """

    __slots__ = (
        "_all_text", "_num_texts", "_plain", "_texts", "calls", "decoder", "done", "finish", "fixed_texts",
        "hidden_tokens", "include_stop", "index", "logprobs", "parser", "reasoning", "reasoning_tokens", "short_chars",
        "stop", "stops", "timings", "tokens",
    )  # fmt: skip

    def __init__(
        self, index: int, params: SamplingParams, text: TextStream, output_format: OutputFormat | None = None
    ) -> None:
        """`output_format`: how its text is to be taken apart; None: it is all text."""
        self.index = index
        self.decoder = text
        spaced = any(stop[-1:].isspace() for stop in params.stop)
        self.parser = None if output_format is None else OutputParser(output_format, keep_trailing_whitespace=spaced)
        self.include_stop = params.include_stop_str_in_output
        self.stops = StopMatcher(params.stop, include=self.include_stop)
        self._plain = not params.stop and params.logprobs is None
        self._all_text = self._plain and self.parser is None
        self._texts: list[str] = []  # of the first `_num_texts` tokens
        self._num_texts = 0
        self.fixed_texts = NO_TEXTS  # of tokens that can take the short way now
        self.short_chars = 0  # of the tokens that took it, up to the last chunk
        self.reasoning: list[str] | None = None if output_format is None or output_format.reasoning is None else []
        self.calls: list[CallDelta] = []
        self.tokens: list[int] = []
        self.hidden_tokens = 0  # generated behind `tokens`, but kept from the client by a safety rule
        self.reasoning_tokens = 0
        self.logprobs: list[TokenLogprobs] | None = None if params.logprobs is None else []
        self.finish: FinishReason | None = None
        self.stop: str | int | None = None
        self.timings: Timings | None = None
        self.done = False

    @property
    def text(self) -> str:
        self._add_texts()
        return "".join(self._texts)

    @property
    def output_tokens(self) -> int:
        """All that were generated for it."""
        return len(self.tokens) + self.hidden_tokens

    def push(self, delta: Delta) -> Chunk | None:
        """The chunk for the client, if there is one. Tokens behind a stop string are surplus and dropped."""
        if delta.finish is not None:
            self.done = True
            self.timings = delta.timings
        if self.finish is not None:
            return None
        self._add_texts()
        short = self._all_text and delta.finish is None and delta.drafts is None
        chunk = self._push_text(delta.tokens) if short else self._push_parts(delta)
        self._num_texts = len(self.tokens)
        short = self._all_text and self.finish is None
        self.fixed_texts = (self.decoder.fixed_texts if short else None) or NO_TEXTS
        return chunk

    def push_token(self, token: int) -> str | None:
        """The short way of one further token: returns its text. None, with nothing changed: it needs `push`."""
        text = self.fixed_texts.get(token)
        if text is not None:
            self.tokens.append(token)
        return text

    @property
    def settled(self) -> bool:
        """Whether all text of its tokens has been passed on: no stage holds any back."""
        held_by_parser = self.parser is not None and self.parser.holds_text
        return not (self.decoder.holds_text or held_by_parser or self.stops.held)

    def cut(self, rule: str, *, text: int, reasoning: int, arguments: Mapping[int, int], tokens: int) -> None:
        """A safety rule ends it: keep so many characters of each part and so many tokens, which the client has. The
        other tokens are only counted."""
        self._add_texts()
        self._texts = [self.text[:text]]
        if self.reasoning is not None:
            self.reasoning = ["".join(self.reasoning)[:reasoning]]
        names = [piece for piece in self.calls if piece.id is not None and piece.index in arguments]
        written = {call.id: call.arguments for call in _complete_calls(self.calls)}
        self.calls = [replace(piece, arguments=written[piece.id or ""][: arguments[piece.index]]) for piece in names]
        self.hidden_tokens = self.output_tokens - tokens
        self.tokens = self.tokens[:tokens]
        self._num_texts = len(self.tokens)
        self.fixed_texts = NO_TEXTS
        if self.logprobs is not None:
            self.logprobs = self.logprobs[:tokens]
        self.finish, self.stop = FinishReason.CONTENT_FILTER, rule

    def fail(self) -> None:
        """Its text cannot be read: it ends here."""
        self._add_texts()
        self.fixed_texts = NO_TEXTS
        self.finish = FinishReason.ERROR

    def _add_texts(self) -> None:
        """Texts of the tokens that came the short way since the last call."""
        if len(self.tokens) > self._num_texts:
            texts = self.fixed_texts
            text = "".join([texts[token] for token in self.tokens[self._num_texts :]])
            self._texts.append(text)
            self.short_chars += len(text)
            self._num_texts = len(self.tokens)

    def _push_text(self, tokens: list[int]) -> Chunk | None:
        """Of tokens that are text and nothing else."""
        if not tokens:
            return None
        push = self.decoder.push
        text = push(tokens[0]) if len(tokens) == 1 else "".join([push(token) for token in tokens])
        self._texts.append(text)
        self.tokens += tokens
        return Chunk(self.index, text, tokens)

    def _push_parts(self, delta: Delta) -> Chunk | None:
        """Of tokens that may be anything."""
        shown = _Shown()
        used = self._decode(delta, shown)
        tokens = delta.tokens[:used]
        logprobs = delta.logprobs[:used] if delta.logprobs is not None else None
        if self.parser is not None and self.parser.text_only:
            self._all_text = self._plain
        self._texts.append(shown.text)
        self.calls += shown.calls
        if self.reasoning is not None:
            self.reasoning.append(shown.reasoning)
        self.tokens += tokens
        if self.logprobs is not None and logprobs is not None:
            self.logprobs += logprobs
        if not (tokens or shown.text or shown.reasoning or shown.calls) and self.finish is None:
            return None
        calls = tuple(shown.calls)
        drafts = () if delta.drafts is None or not tokens else (DraftedStep(delta.drafts, tokens),)
        return Chunk(
            self.index, shown.text, tokens, logprobs, self.finish, self.stop, shown.reasoning, calls, drafts=drafts
        )

    def _decode(self, delta: Delta, shown: _Shown) -> int:
        """What is safe to show, and how many of the delta's tokens it took to get there."""
        last = len(delta.tokens) - 1
        for place, token in enumerate(delta.tokens):
            if place == last and delta.finish in _BY_TOKEN:
                self.stop = token if delta.finish is FinishReason.STOP_TOKEN else None
                if not self.include_stop:
                    break
            if self.parser is not None and self.parser.in_reasoning:
                self.reasoning_tokens += 1
            self._show(self._split(self.decoder.push(token)), shown)
            if self.finish is not None:
                return place + 1
        if delta.finish is not None:
            self._show(self._split(self.decoder.flush(), ended=True), shown)
            shown.text += self.stops.flush()
            self.finish = self.finish or delta.finish
        return len(delta.tokens)

    def _split(self, text: str, *, ended: bool = False) -> list[Part]:
        if self.parser is None:
            return [("text", text)]
        parts = self.parser.push(text)
        return parts + self.parser.flush() if ended else parts

    def _show(self, parts: list[Part], shown: _Shown) -> None:
        for part in parts:
            if isinstance(part, CallDelta):
                shown.text += self.stops.flush()  # no stop string begins before a call and ends behind it
                shown.calls.append(part)
                continue
            kind, text = part
            if kind == "reasoning":
                shown.reasoning += text
                continue
            shown.text += self.stops.push(text)
            if self.stops.matched is not None:
                self.finish, self.stop = FinishReason.STOP_STRING, self.stops.matched
                return

    def choice(self) -> Choice:
        assert self.finish is not None
        return Choice(
            self.index,
            self.text,
            self.tokens,
            self.finish,
            self.stop,
            self.logprobs,
            self.timings,
            None if self.reasoning is None else "".join(self.reasoning),
            _complete_calls(self.calls),
            self.reasoning_tokens,
            self.hidden_tokens,
        )


def complete_chunk(stream: ChoiceStream, prompt_logprobs: list[TokenLogprobs | None] | None) -> Chunk:
    """A choice that has ended, in one chunk."""
    choice = stream.choice()
    calls = tuple(
        CallDelta(index=index, id=call.id, name=call.name, arguments=call.arguments)
        for index, call in enumerate(choice.calls)
    )
    reasoning = choice.reasoning or ""
    return Chunk(
        choice.index, choice.text, choice.tokens, choice.logprobs, choice.finish, choice.stop, reasoning, calls,
        prompt_logprobs, choice.hidden_tokens,
    )  # fmt: skip


class _Shown:
    """What one Delta gives the client to see."""

    def __init__(self) -> None:
        self.text = ""
        self.reasoning = ""
        self.calls: list[CallDelta] = []


def _complete_calls(pieces: list[CallDelta]) -> tuple[ToolCall, ...]:
    names = [piece for piece in pieces if piece.id is not None]
    arguments: list[list[str]] = [[] for _ in names]
    for piece in pieces:
        arguments[piece.index].append(piece.arguments)
    return tuple(
        ToolCall(id=piece.id or "", name=piece.name or "", arguments="".join(arguments[piece.index])) for piece in names
    )


class NoText:
    """Of a model without a tokenizer, or a request whose text is not wanted: token ids are all there is."""

    fixed_texts = None
    holds_text = False

    def push(self, token: int) -> str:
        return ""

    def flush(self) -> str:
        return ""
