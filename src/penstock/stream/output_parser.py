"""The parts of an answer: the reasoning before it, the text that is meant for the reader, and tool calls.

White space that only sets them apart belongs to none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.flow.output_format import CallSyntax, OutputFormat
from penstock.flow.tools import CallDelta
from penstock.stream.calls import Calls, new_id, read_calls
from penstock.stream.json_text import Cut, Malformed
from penstock.stream.tape import SPACE, Tape, Waiting, find_first, overlap

Part = tuple[str, str] | CallDelta  # ("text" or "reasoning", a piece of it), or a piece of a call


class OutputParser:
    """Text in, parts out. A part is given once nothing that comes later can make it another."""

    def __init__(
        self, output_format: OutputFormat, make_id: Callable[[], str] = new_id, *, spaced: bool = False
    ) -> None:
        """`spaced`: white space behind text belongs to it, since somebody waits for it there."""
        self.output_format = output_format
        self._spaced = spaced
        self.thinking = output_format.opened  # what comes next is reasoning
        self.plain = False  # all that comes is text: what is pushed is what would be given, until `flush`
        self._tape = Tape()
        self._calls = Calls(self._give_call, make_id)
        self._parts: list[Part] = []
        self._parser = self._run()

    def push(self, text: str) -> list[Part]:
        self._tape.feed(text)
        return self._advance()

    def flush(self) -> list[Part]:
        """The sequence has ended: what was held back is what it looks like now."""
        self._tape.ended = True
        return self._advance()

    def _advance(self) -> list[Part]:
        next(self._parser, None)
        parts, self._parts = self._parts, []
        return parts

    def _run(self) -> Waiting[None]:
        yield from self._reason()
        syntax = self.output_format.calls
        if syntax is None:
            self.plain = not self.output_format.bound
            yield from self._pass("text", ())
        elif syntax.open:
            yield from self._answer(syntax)
        else:
            yield from self._bare_answer(syntax)

    def _reason(self) -> Waiting[None]:
        marks, tape = self.output_format.thinking, self._tape
        if marks is None:
            return
        if not self.thinking:
            tape.mark = tape.place
            yield from tape.skip_space()
            self.thinking = yield from tape.skip(marks.open)
            if not self.thinking:
                tape.place = tape.mark
            tape.mark = None
        if self.thinking:
            yield from tape.skip_space()
            yield from self._pass("reasoning", (marks.close,))
            self.thinking = False
            yield from tape.skip_space()

    def _answer(self, syntax: CallSyntax) -> Waiting[None]:
        """Text and calls, in any order."""
        tape = self._tape
        while mark := (yield from self._pass("text", (syntax.open, *syntax.also_open))):
            tape.mark = tape.place - len(mark)
            tape.place -= mark.endswith("[")  # of a list, which begins there
            yield from self._read_calls(syntax, known=True)

    def _bare_answer(self, syntax: CallSyntax) -> Waiting[None]:
        """Calls, if the answer begins as one; else text."""
        tape = self._tape
        while True:
            tape.mark = tape.place
            if (yield from tape.skip_space()) == ";" and self._calls.count:  # between several
                tape.place += 1
                yield from tape.skip_space()
            known = False
            for mark in syntax.also_open:
                known = known or (yield from tape.skip(mark))
            if not known and (yield from tape.peek()) != "{":
                break
            yield from self._read_calls(syntax, known=known)
        tape.place, tape.mark = tape.mark, None
        yield from self._pass("text", ())

    def _read_calls(self, syntax: CallSyntax, *, known: bool) -> Waiting[None]:
        """From behind the opening mark. What is no call is text; so is what ended before that could be told, unless
        its mark is `known`."""
        tape = self._tape
        try:
            yield from read_calls(tape, syntax, self._calls)
        except Malformed:
            self._give("text", tape.text[tape.place if tape.mark is None else tape.mark : tape.place])
        except Cut:
            tape.place = len(tape.text)
            if tape.mark is not None and not known:
                self._give("text", tape.text[tape.mark :])
        tape.mark = None

    def _pass(self, kind: str, marks: Sequence[str]) -> Waiting[str | None]:
        """Give text until one of the marks is there; the mark is read. None: the end was first."""
        tape, space = self._tape, "" if self._spaced and kind == "text" else SPACE
        while True:
            if found := find_first(tape.text, marks, tape.place):
                place, mark = found
                self._give(kind, tape.take(place).rstrip(space))
                tape.place += len(mark)
                return mark
            if tape.ended:
                rest = tape.take(len(tape.text))
                self._give(kind, "" if self._calls.count and rest.isspace() else rest)
                return None
            safe = tape.text[tape.place : len(tape.text) - overlap(tape.rest, marks)]
            self._give(kind, tape.take(tape.place + len(safe.rstrip(space) if marks else safe)))
            yield

    def _give(self, kind: str, text: str) -> None:
        if text and not (self.output_format.bound and kind == "text"):
            self._parts.append((kind, text))

    def _give_call(self, piece: CallDelta) -> None:
        self._tape.mark = None  # it is a call for sure
        last = self._parts[-1] if self._parts else None
        if isinstance(last, CallDelta) and last.id is None and piece.id is None:
            self._parts[-1] = CallDelta(index=piece.index, arguments=last.arguments + piece.arguments)
        else:
            self._parts.append(piece)
