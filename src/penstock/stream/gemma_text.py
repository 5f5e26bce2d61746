"""Gemma's notation of arguments, `{city:<|"|>Oslo<|"|>,days:2}`, turned into JSON while it is being written."""

from __future__ import annotations

import json
import re

from penstock.stream.json_text import Cut, Malformed, Sink, either, expect
from penstock.stream.tape import Tape, Waiting, overlap

MAX_DEPTH = 64
_PYTHON = {"None": "null", "True": "true", "False": "false"}  # templates write some of them so, and models follow

_KEY_END = re.compile(r"[:,{}\[\]]")
_SCALAR_END = re.compile(r"[,}\]]")


def mapping(tape: Tape, quote: str, sink: Sink, depth: int = 0) -> Waiting[None]:
    yield from expect(tape, "{")
    sink("{")
    if (yield from _ends(tape, "}", sink)):
        return
    separator = ","
    while separator == ",":
        yield from tape.skip_space()
        quoted = yield from tape.skip(quote)
        key = yield from _upto(tape, _KEY_END)
        sink(json.dumps(key.strip().removesuffix(quote) if quoted else key.strip(), ensure_ascii=False) + ": ")
        yield from expect(tape, ":")
        yield from _value(tape, quote, sink, depth + 1)
        separator = yield from either(tape, ",}")
        sink(", " if separator == "," else "}")


def _list(tape: Tape, quote: str, sink: Sink, depth: int) -> Waiting[None]:
    yield from expect(tape, "[")
    sink("[")
    if (yield from _ends(tape, "]", sink)):
        return
    separator = ","
    while separator == ",":
        yield from _value(tape, quote, sink, depth + 1)
        separator = yield from either(tape, ",]")
        sink(", " if separator == "," else "]")


def _value(tape: Tape, quote: str, sink: Sink, depth: int) -> Waiting[None]:
    if depth > MAX_DEPTH:
        raise Malformed
    first = yield from tape.skip_space()
    if (yield from tape.skip(quote)):
        yield from _text(tape, quote, sink)
    elif first == "{":
        yield from mapping(tape, quote, sink, depth)
    elif first == "[":
        yield from _list(tape, quote, sink, depth)
    else:
        word = (yield from _upto(tape, _SCALAR_END)).strip()
        word = _PYTHON.get(word, word)
        sink(word if _is_json(word) else json.dumps(word, ensure_ascii=False))


def _text(tape: Tape, quote: str, sink: Sink) -> Waiting[None]:
    """From behind the opening quote. There are no escapes: a text has anything but the quote itself."""
    sink('"')
    while (place := tape.text.find(quote, tape.place)) < 0:
        safe = len(tape.text) - overlap(tape.rest, (quote,))
        sink(_escaped(tape.take(safe)))
        if tape.ended:
            raise Cut
        yield
    sink(_escaped(tape.take(place)) + '"')
    tape.place += len(quote)


def _upto(tape: Tape, end: re.Pattern[str]) -> Waiting[str]:
    while (found := end.search(tape.text, tape.place)) is None:
        if tape.ended:
            raise Cut
        yield
    return tape.take(found.start())


def _ends(tape: Tape, bracket: str, sink: Sink) -> Waiting[bool]:
    found = yield from tape.skip_space()
    if found != bracket:
        return False
    tape.place += 1
    sink(bracket)
    return True


def _escaped(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)[1:-1]


def _is_json(word: str) -> bool:
    try:
        json.loads(word)
    except (ValueError, RecursionError):
        return False
    return word not in ("NaN", "Infinity", "-Infinity")
