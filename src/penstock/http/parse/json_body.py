"""Decodes the JSON object of a body, or raises an error that says what is wrong with it.

Long bodies are decoded in a thread (`body`), but json's C decoder and searches in long texts hold the interpreter lock.
So long bodies are decoded in Python, and C code gets them in pieces that take milliseconds.
"""

from __future__ import annotations

import functools
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any, NoReturn

from penstock.errors import InvalidRequest
from penstock.http.parse.error_text import MAX_SHOWN_NAME, FieldPath, describe_value, field_path
from penstock.http.parse.json_internals import checked, object_scanner, scan_array, scan_string, scanner_factory

MAX_MEMBERS = 1024  # of any object in a body: bounds the number of errors, and the time to find them
MAX_VALUES = 1 << 17  # strings (names included), lists and objects: enough for tens of thousands of messages
SHORT_BODY = 1 << 16  # bytes: longer bodies are decoded in pieces
PIECE = 1 << 16  # characters of a text or of a list of numbers
SHARED_INTEGERS = 1 << 18  # more than any vocabulary has tokens
WINDOW = 1 << 20  # characters or bytes that are searched at once

# Escapes of half a surrogate pair, which is not a character, or of NUL, which names must not have: it marks union
# branches in the location of an error (`unions.BRANCH`).
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_IN_NAMES = re.compile("[\x00\ud800-\udfff]")
_CHARACTERS = re.compile(r'(?:[^"\\]+|\\u[0-9a-fA-F]{4}|\\[^u])*')
_FIRST_HALF = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")
_SPACE = re.compile(r"[ \t\n\r]*")
_NUMBER = re.compile(r"(-?(?:0|[1-9]\d{0,4400}))(\.\d{1,4400})?([eE][-+]?\d{1,4400})?", re.ASCII)
_NUMBERS = re.compile(r"[-+.\d\seE,]*,", re.ASCII)


def decode_object(raw: bytes) -> dict[str, Any]:
    """Raises InvalidRequest and nothing else."""
    body = _decode(raw)
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {describe_value(body)}")
    return body


def _decode(raw: bytes) -> Any:
    if _count_values(raw) > MAX_VALUES:
        raise InvalidRequest(f"the body has more than {MAX_VALUES} strings, lists and objects")
    try:
        text = raw.decode()
        body = (_PIECEWISE if len(raw) > SHORT_BODY else _DECODER).decode(text)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"the body is not valid JSON: {error.msg} ({where})" if raw else "the body is empty"
        raise InvalidRequest(message) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except ValueError:  # the only other cause: Python converts no longer integers
        raise InvalidRequest("the body has an integer of more than 4300 digits") from None
    if _occurs(_SUSPECT_ESCAPE, text):
        _check_characters(body)
    return body


def _count_values(raw: bytes) -> int:
    """How many strings, lists and objects there are, or an upper bound if that is within MAX_VALUES."""
    if len(raw) // 2 <= MAX_VALUES:  # each has at least two bytes
        return len(raw) // 2
    if (bound := raw.count(b'"') // 2 + raw.count(b"[") + raw.count(b"{")) <= MAX_VALUES:
        return bound
    quotes = brackets = 0
    for piece in _windows(raw):
        parts = piece.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        between = b"".join(parts[quotes % 2 :: 2])  # strings
        brackets += between.count(b"[") + between.count(b"{")
        quotes += len(parts) - 1
        if quotes // 2 + brackets > MAX_VALUES:
            break
    return quotes // 2 + brackets


def _windows(raw: bytes) -> Iterator[bytes]:
    """Pieces that do not split an escape."""
    start = 0
    while start < len(raw):
        end = start + WINDOW
        while end < len(raw) and raw[end - 1] == ord("\\"):
            end += 1
        yield raw[start:end]
        start = end


def _occurs(pattern: re.Pattern[str], text: str) -> bool:
    """`pattern` matches six characters at most."""
    return any(pattern.search(text, place, place + WINDOW + 5) for place in range(0, len(text), WINDOW))


# --- the decoders


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    by_name = dict(members)
    if len(members) > MAX_MEMBERS:
        raise InvalidRequest(f"the body has an object with more than {MAX_MEMBERS} members")
    if len(by_name) < len(members):
        duplicate = Counter(name for name, _ in members).most_common(1)[0][0]
        raise InvalidRequest(
            f"the body has {describe_value(duplicate)} twice in one object", param=field_path([duplicate])
        )
    return by_name


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidRequest(f"the body has a number that is too large: {text[:MAX_SHOWN_NAME]}")
    return number


def _reject_constant(text: str) -> NoReturn:
    raise InvalidRequest(f"the body is not valid JSON: {text} is not a JSON number")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_reject_constant)


def _string(text: str, begin: int, strict: bool = True) -> tuple[str, int]:
    """json's `scanstring`, in pieces."""
    at, parts = begin, list[str]()
    try:
        while True:
            piece = _CHARACTERS.match(text, at, at + PIECE)
            end = piece.end() if piece is not None else at
            if end - at >= 6 and _FIRST_HALF.search(text, end - 6, end):
                before = text[at : end - 6]
                if (len(before) - len(before.rstrip("\\"))) % 2 == 0:  # otherwise this backslash is itself escaped
                    end -= 6
            if end == at or text[end : end + 1] == '"':  # the last piece, or an error
                last, after = scan_string(text, at, strict)
                return ("".join([*parts, last]), after) if parts else (last, after)
            parts.append(scan_string(f'{text[at:end]}"', 0, strict)[0])
            at = end
    except json.JSONDecodeError as error:
        if error.msg.startswith("Unterminated"):
            raise json.JSONDecodeError(error.msg, text, begin - 1) from None
        raise json.JSONDecodeError(error.msg, text, error.pos + (0 if error.doc is text else at)) from None


def _space(text: str, begin: int) -> re.Match[str]:
    """A match that ends where the white space does."""
    found = _SPACE.match(text, begin, begin + WINDOW)
    while found is not None and found.end() - found.start() == WINDOW:
        found = _SPACE.match(text, found.end(), found.end() + WINDOW)
    assert found is not None  # it may be empty
    return found


def _shared_integers(numbers: list[Any]) -> list[Any]:
    """The same numbers, each small integer as one object wherever it occurs. Millions of token ids take a quarter of
    the memory then, and nothing to free: freeing them all at once would hold up the event loop."""
    if {*map(type, numbers)} != {int} or min(numbers) < 0 or max(numbers) >= SHARED_INTEGERS:
        return numbers
    return list(map(_small_integers().__getitem__, numbers))


@functools.cache
def _small_integers() -> list[int]:
    return list(range(SHARED_INTEGERS))


class _Piecewise(json.JSONDecoder):
    """json's decoder in Python, which lets other threads run; C code only decodes pieces of texts and lists of
    numbers."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object, parse_float=_float, parse_constant=_reject_constant)
        self.parse_array = self._array
        # json's own functions, with names and white space in pieces and a limit on digits: what follows is an error.
        self.parse_object = object_scanner(_string, _space)
        self.parse_string = _string
        self.scan_once = scanner_factory(_NUMBER)(self)

    def decode(self, s: str, _w: Any = _space) -> Any:
        return super().decode(s, _w)

    @staticmethod
    def _array(begin: tuple[str, int], scan_once: Any) -> tuple[list[Any], int]:
        text, end = last = begin
        numbers: list[Any] = []
        while piece := _NUMBERS.match(text, end, end + PIECE):
            try:
                found = _DECODER.decode(f"[{text[end : piece.end() - 1]}]")
            except ValueError:  # raised again below, with the right position
                break
            if not found:
                break
            numbers += _shared_integers(found)
            last, end = (text, end), piece.end()
        rest, after = scan_array((text, end), scan_once, _space)
        if numbers and not rest:  # a trailing comma
            scan_array(last, scan_once, _space)  # raises
        numbers += rest
        return numbers, after


_PIECEWISE = checked(_Piecewise, _DECODER)


def _check_characters(body: Any) -> None:
    """Without recursion: the body may be as deep as the decoder allows."""
    open_items: list[tuple[FieldPath, Any]] = [((), body)]
    while open_items:
        path, value = open_items.pop()
        if isinstance(value, str):
            if _occurs(_SURROGATE, value):
                raise _not_text(path, "half of a surrogate pair")
        elif isinstance(value, dict):
            if any(_occurs(_NOT_IN_NAMES, name) for name in value):
                raise _not_text(path, "a name with a NUL or half of a surrogate pair")
            open_items += [((*path, name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            open_items += [((*path, index), inner) for index, inner in enumerate(value)]


def _not_text(path: FieldPath, what: str) -> InvalidRequest:
    where = field_path(path)
    return InvalidRequest(f"{where or 'the body'} is not valid text: it has {what}", param=where or None)
