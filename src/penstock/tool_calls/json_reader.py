"""Incremental JSON: finds where a value ends, and passes on each part of it as soon as it arrives."""

from __future__ import annotations

import json
import re
from collections.abc import Callable

from penstock.tool_calls.text_buffer import WHITESPACE, Malformed, Parser, TextBuffer, Truncated

_IN_STRING = re.compile(r'["\\]')
_OUTSIDE_STRING = re.compile(r'["{}\[\]]')
_SCALAR_END = re.compile(rf"[,}}\]{WHITESPACE}]")

Sink = Callable[[str], None]


def expect(buffer: TextBuffer, chars: str) -> Parser[str]:
    """Skip white space and read one character, which must be one of `chars`."""
    char = yield from buffer.skip_whitespace()
    if not char:
        raise Truncated
    if char not in chars:
        raise Malformed
    buffer.position += 1
    return char


def read_string(buffer: TextBuffer) -> Parser[str]:
    """Read a whole string and decode it. Lone surrogates, which are no characters, are replaced."""
    yield from expect(buffer, '"')
    parts: list[str] = ['"']
    yield from _copy_to_end_of_string(buffer, parts.append)
    try:
        text = str(json.loads("".join(parts), strict=False))
    except ValueError:
        raise Malformed from None
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def copy_value(buffer: TextBuffer, sink: Sink) -> Parser[None]:
    """Pass on a value of any type, to the letter. Does not check that brackets match: the grammar sees to that."""
    first = yield from buffer.skip_whitespace()
    if not first:
        raise Truncated
    if first not in '{["':
        yield from _copy_scalar(buffer, sink)
        return
    sink(buffer.take(buffer.position + 1))
    if first == '"':
        yield from _copy_to_end_of_string(buffer, sink)
        return
    depth = 1
    while depth:
        found = _OUTSIDE_STRING.search(buffer.text, buffer.position)
        sink(buffer.take(found.end() if found else len(buffer.text)))
        if found is None:
            yield from _wait_for_more(buffer)
        elif found[0] == '"':
            yield from _copy_to_end_of_string(buffer, sink)
        else:
            depth += 1 if found[0] in "{[" else -1


def _copy_to_end_of_string(buffer: TextBuffer, sink: Sink) -> Parser[None]:
    """From behind the opening quote to behind the closing one."""
    while True:
        found = _IN_STRING.search(buffer.text, buffer.position)
        if found is None:
            sink(buffer.take(len(buffer.text)))
            yield from _wait_for_more(buffer)
        elif found[0] == '"':
            sink(buffer.take(found.end()))
            return
        elif found.end() < len(buffer.text):
            sink(buffer.take(found.end() + 1))  # a backslash, and the character it escapes
        else:
            sink(buffer.take(found.start()))
            yield from _wait_for_more(buffer, beyond=1)


def _copy_scalar(buffer: TextBuffer, sink: Sink) -> Parser[None]:
    if buffer.text[buffer.position] in ",}]":
        raise Malformed
    while True:
        found = _SCALAR_END.search(buffer.text, buffer.position)
        sink(buffer.take(found.start() if found else len(buffer.text)))
        if found is not None:
            return
        yield from _wait_for_more(buffer)


def _wait_for_more(buffer: TextBuffer, beyond: int = 0) -> Parser[None]:
    """Wait until more than `beyond` characters are unread."""
    while len(buffer.text) - buffer.position <= beyond:
        if buffer.ended:
            raise Truncated
        yield
