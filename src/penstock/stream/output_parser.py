"""Splits the text of a response into reasoning, answer and tool calls while it is generated.

White space that only separates them belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.flow.output_format import OutputFormat
from penstock.flow.tools import CallDelta
from penstock.tool_calls.call_stream import CallStream, new_call_id
from penstock.tool_calls.registry import SYNTAXES
from penstock.tool_calls.syntax import ToolCallSyntax
from penstock.tool_calls.text_buffer import (
    WHITESPACE,
    Malformed,
    Parser,
    TextBuffer,
    Truncated,
    find_first,
    overlap,
)

Part = tuple[str, str] | CallDelta  # ("text" or "reasoning", a piece of it), or a piece of a call


class OutputParser:
    """Text in, parts out. A part is returned as soon as no later text can change it."""

    def __init__(
        self,
        output_format: OutputFormat,
        make_id: Callable[[], str] = new_call_id,
        *,
        keep_trailing_whitespace: bool = False,
    ) -> None:
        """`keep_trailing_whitespace`: white space between text and calls is text, since a stop string ends with it."""
        self.output_format = output_format
        self.in_reasoning = output_format.in_reasoning  # the next text is reasoning
        self.text_only = (
            False  # everything that follows is text: until `flush`, pushed text would be returned unchanged
        )
        self._keep_trailing_whitespace = keep_trailing_whitespace
        self._buffer = TextBuffer()
        self._calls = CallStream(self._emit_call, make_id)
        self._parts: list[Part] = []
        self._parser = self._parse()

    def push(self, text: str) -> list[Part]:
        self._buffer.feed(text)
        return self._advance()

    @property
    def holds_text(self) -> bool:
        """Whether text waits for what follows it."""
        buffer = self._buffer
        return buffer.position < len(buffer.text) or buffer.checkpoint is not None

    def flush(self) -> list[Part]:
        """The output has ended: return what was held back."""
        self._buffer.ended = True
        return self._advance()

    def _advance(self) -> list[Part]:
        next(self._parser, None)
        parts, self._parts = self._parts, []
        return parts

    def _parse(self) -> Parser[None]:
        yield from self._parse_reasoning()
        if self.output_format.tool_calls is None:
            self.text_only = not self.output_format.calls_only
            yield from self._pass_on("text", ())
            return
        syntax = SYNTAXES[self.output_format.tool_calls]
        yield from self._parse_answer(syntax) if syntax.opening else self._parse_unmarked_answer(syntax)

    def _parse_reasoning(self) -> Parser[None]:
        markers, buffer = self.output_format.reasoning, self._buffer
        if markers is None:
            return
        if not self.in_reasoning:
            buffer.checkpoint = buffer.position
            yield from buffer.skip_whitespace()
            self.in_reasoning = yield from buffer.skip(markers.open)
            if not self.in_reasoning:
                buffer.position = buffer.checkpoint
            buffer.checkpoint = None
        if self.in_reasoning:
            yield from buffer.skip_whitespace()
            yield from self._pass_on("reasoning", (markers.close,))
            self.in_reasoning = False
            yield from buffer.skip_whitespace()

    def _parse_answer(self, syntax: ToolCallSyntax) -> Parser[None]:
        """Text and calls, in any order."""
        buffer = self._buffer
        while marker := (yield from self._pass_on("text", (syntax.opening, *syntax.also_opening))):
            buffer.checkpoint = buffer.position - len(marker)
            buffer.position -= marker.endswith("[")  # the bracket belongs to the list of calls
            yield from self._parse_calls(syntax, certain=True)

    def _parse_unmarked_answer(self, syntax: ToolCallSyntax) -> Parser[None]:
        """Calls if the answer begins as one, else text."""
        buffer = self._buffer
        while True:
            buffer.checkpoint = buffer.position
            try:
                certain = yield from syntax.skip_opening(buffer, self._calls)
            except Malformed:
                break
            yield from self._parse_calls(syntax, certain=certain)
        buffer.position, buffer.checkpoint = buffer.checkpoint or 0, None
        yield from self._pass_on("text", ())

    def _parse_calls(self, syntax: ToolCallSyntax, *, certain: bool) -> Parser[None]:
        """From behind the opening marker. Malformed calls are text; so are truncated ones, unless it is `certain` that
        they are calls."""
        buffer = self._buffer
        try:
            yield from syntax.read(buffer, self._calls)
        except Malformed:
            start = buffer.position if buffer.checkpoint is None else buffer.checkpoint
            self._emit("text", buffer.text[start : buffer.position])
        except Truncated:
            buffer.position = len(buffer.text)
            if buffer.checkpoint is not None and not certain:
                self._emit("text", buffer.text[buffer.checkpoint :])
        buffer.checkpoint = None

    def _pass_on(self, kind: str, markers: Sequence[str]) -> Parser[str | None]:
        """Emit text up to the first marker, and return the marker, which is read; None at the end of the text."""
        buffer = self._buffer
        stripped = "" if self._keep_trailing_whitespace and kind == "text" else WHITESPACE
        while True:
            if found := find_first(buffer.text, markers, buffer.position):
                position, marker = found
                self._emit(kind, buffer.take(position).rstrip(stripped))
                buffer.position += len(marker)
                return marker
            if buffer.ended:
                rest = buffer.take(len(buffer.text))
                self._emit(kind, "" if self._calls.count and rest.isspace() else rest)
                return None
            safe = buffer.text[buffer.position : len(buffer.text) - overlap(buffer.rest, markers)]
            self._emit(kind, buffer.take(buffer.position + len(safe.rstrip(stripped) if markers else safe)))
            yield

    def _emit(self, kind: str, text: str) -> None:
        if text and not (self.output_format.calls_only and kind == "text"):
            self._parts.append((kind, text))

    def _emit_call(self, piece: CallDelta) -> None:
        self._buffer.checkpoint = None  # it is a call: the parser does not go back
        last = self._parts[-1] if self._parts else None
        if isinstance(last, CallDelta) and last.id is None and piece.id is None:
            self._parts[-1] = CallDelta(index=piece.index, arguments=last.arguments + piece.arguments)
        else:
            self._parts.append(piece)
