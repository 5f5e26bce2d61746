"""Reading JSON that is still being written: where a value ends, and as much of it as is there already."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from penstock.stream.tape import SPACE, Tape, Waiting

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE = re.compile(r'["{}\[\]]')
_SCALAR_END = re.compile(rf"[,}}\]{SPACE}]")

Sink = Callable[[str], None]


class Malformed(Exception):
    """It is not what it seemed to be."""


class Cut(Exception):
    """The text ended within it."""


def expect(tape: Tape, char: str) -> Waiting[None]:
    found = yield from tape.skip_space()
    if not found:
        raise Cut
    if found != char:
        raise Malformed
    tape.place += 1


def either(tape: Tape, chars: str) -> Waiting[str]:
    """Which of these characters comes next; it is read."""
    found = yield from tape.skip_space()
    if not found:
        raise Cut
    if found not in chars:
        raise Malformed
    tape.place += 1
    return found


def string(tape: Tape) -> Waiting[str]:
    """A string, whole. Half of a surrogate pair, which is no character, is replaced."""
    yield from expect(tape, '"')
    parts: list[str] = ['"']
    yield from _to_end_of_string(tape, parts.append)
    try:
        text = str(json.loads("".join(parts), strict=False))
    except ValueError:
        raise Malformed from None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def value(tape: Tape, sink: Sink) -> Waiting[None]:
    """Any value, passed on as it is written. Whether brackets match is for the grammar to see to, not checked here."""
    first = yield from tape.skip_space()
    if not first:
        raise Cut
    if first not in '{["':
        yield from _scalar(tape, sink)
        return
    sink(tape.take(tape.place + 1))
    if first == '"':
        yield from _to_end_of_string(tape, sink)
        return
    depth = 1
    while depth:
        found = _OUTSIDE.search(tape.text, tape.place)
        sink(tape.take(found.end() if found else len(tape.text)))
        if found is None:
            yield from _more(tape)
        elif found[0] == '"':
            yield from _to_end_of_string(tape, sink)
        else:
            depth += 1 if found[0] in "{[" else -1


def _to_end_of_string(tape: Tape, sink: Sink) -> Waiting[None]:
    """From behind the opening quote to behind the closing one."""
    while True:
        found = _IN_STRING.search(tape.text, tape.place)
        if found is None:
            sink(tape.take(len(tape.text)))
            yield from _more(tape)
        elif found[0] == '"':
            sink(tape.take(found.end()))
            return
        elif found.end() < len(tape.text):
            sink(tape.take(found.end() + 1))  # a backslash, and what it is for
        else:
            sink(tape.take(found.start()))
            yield from _more(tape, seen=1)


def _scalar(tape: Tape, sink: Sink) -> Waiting[None]:
    if tape.text[tape.place] in ",}]":
        raise Malformed
    while True:
        found = _SCALAR_END.search(tape.text, tape.place)
        sink(tape.take(found.start() if found else len(tape.text)))
        if found is not None:
            return
        yield from _more(tape)


def _more(tape: Tape, seen: int = 0) -> Waiting[None]:
    """Wait for text beyond the `seen` characters that are there."""
    while len(tape.text) - tape.place <= seen:
        if tape.ended:
            raise Cut
        yield
