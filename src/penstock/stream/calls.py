"""Tool calls in the text of an answer: their syntax is data (flow.CallSyntax), and arguments leave as they come in.

The readers are generators over a Tape, see there. They report to a Calls, and raise Malformed where the text is not a
call after all, or Cut where it ends within one.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

from penstock.flow import CallDelta
from penstock.flow.output_format import GEMMA_CALL, CallSyntax
from penstock.stream import gemma_text
from penstock.stream.json_text import Cut, Malformed, either, expect, string, value
from penstock.stream.tape import Tape, Waiting, find_first


def new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class Calls:
    """Counts and names the calls of one answer; pieces of them go to `give`."""

    def __init__(self, give: Callable[[CallDelta], None], make_id: Callable[[], str]) -> None:
        self.give = give
        self.make_id = make_id
        self.count = 0
        self.named = False  # the call that is being read has its name
        self._early: list[str] = []  # arguments that came before the name

    def begin(self) -> None:
        self.named = False
        self._early = []

    def name(self, name: str) -> None:
        if self.named or not name:
            raise Malformed
        self.named = True
        self.count += 1
        self.give(CallDelta(index=self.count - 1, id=self.make_id(), name=name))
        self.arguments("".join(self._early))

    def arguments(self, text: str) -> None:
        if not self.named:
            self._early.append(text)
        elif text:
            self.give(CallDelta(index=self.count - 1, arguments=text))


def read_calls(tape: Tape, syntax: CallSyntax, calls: Calls) -> Waiting[None]:
    """What the opening mark announces, to behind the closing mark."""
    calls.begin()
    if syntax.shape == "named":
        yield from _named(tape, syntax, calls)
    elif syntax.shape == "gemma":
        calls.name((yield from _until(tape, ("{",))).strip().removeprefix(GEMMA_CALL))
        yield from gemma_text.mapping(tape, syntax.quote, calls.arguments)
    elif (yield from tape.skip_space()) == "[":  # families that write one object know lists of them as well
        yield from _list(tape, calls)
    else:
        yield from _object(tape, calls)
    if syntax.close:
        yield from tape.skip_space()
        closed = yield from tape.skip(syntax.close)
        if not closed and tape.ended and syntax.close.startswith(tape.rest):
            raise Cut


def _list(tape: Tape, calls: Calls) -> Waiting[None]:
    yield from expect(tape, "[")
    separator = ","
    while separator == ",":
        calls.begin()
        yield from _object(tape, calls)
        separator = yield from either(tape, ",]")


def _object(tape: Tape, calls: Calls) -> Waiting[None]:
    yield from expect(tape, "{")
    given = False
    separator = ","
    while separator == ",":
        key = yield from string(tape)
        yield from expect(tape, ":")
        if key == "name":
            calls.name((yield from string(tape)))
        elif key in ("arguments", "parameters"):
            given = True
            yield from _arguments(tape, calls)
        else:
            yield from value(tape, lambda _: None)
        separator = yield from either(tape, ",}")
    if not calls.named:
        raise Malformed
    if not given:
        calls.arguments("{}")


def _arguments(tape: Tape, calls: Calls) -> Waiting[None]:
    """An object; or a string that has one in it, as some models write."""
    first = yield from tape.skip_space()
    if first == '"':
        calls.arguments((yield from string(tape)))
    else:
        yield from value(tape, calls.arguments)


def _named(tape: Tape, syntax: CallSyntax, calls: Calls) -> Waiting[None]:
    marks = (syntax.args_mark, *((syntax.id_mark,) if syntax.id_mark else ()))
    name = yield from _until(tape, marks)
    if syntax.id_mark and (yield from tape.skip(syntax.id_mark)):
        yield from _until(tape, (syntax.args_mark,))
    yield from tape.skip(syntax.args_mark)
    calls.name(name.strip())
    yield from value(tape, calls.arguments)


def _until(tape: Tape, marks: tuple[str, ...]) -> Waiting[str]:
    """What stands before the first of these marks, which stays where it is."""
    while (found := find_first(tape.text, marks, tape.place)) is None:
        if tape.ended:
            raise Cut
        if len(tape.text) - tape.place > 1024:
            raise Malformed
        yield
    return tape.take(found[0])
