"""From the bytes of a body to the JSON object they hold, or to one sentence about what is wrong with them.

Long bodies are decoded in a thread (`body`), but the decoder is native code and lets nobody else run meanwhile. So what
it can be given at once is bounded: texts, lists and objects by their number, numbers by being decoded in pieces.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from json import scanner
from json.decoder import JSONArray  # type: ignore[attr-defined]
from typing import Any, NoReturn

from penstock.errors import InvalidRequest
from penstock.intake.fields import LONGEST_NAME, MAX_MEMBERS
from penstock.intake.wording import Place, path, shown

MAX_VALUES = 1 << 17  # strings, names included, lists and objects: tens of thousands of messages
MANY_COMMAS = 1 << 16  # about as many numbers take a few milliseconds
PIECE = 1 << 16  # characters of a list of numbers

# Escapes that may stand for half a surrogate pair, which is no character, or for a NUL, which no name may have: union
# branches are marked by it in the location of an error (`unions.BRANCH`).
_SUSPECT_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NOT_IN_NAMES = re.compile("[\x00\ud800-\udfff]")
_NUMBERS = re.compile(r"[-+.\d\seE,]*,", re.ASCII)


def decoded(raw: bytes) -> dict[str, Any]:
    """The object a body holds. Raises InvalidRequest, and nothing else."""
    body = _decode(raw)
    if not isinstance(body, dict):
        raise InvalidRequest(f"the body must be a JSON object, got {shown(body)}")
    return body


def _decode(raw: bytes) -> Any:
    if _values(raw) > MAX_VALUES:
        raise InvalidRequest(f"the body has more than {MAX_VALUES} strings, lists and objects")
    decoder = _PIECEWISE if raw.count(b",") > MANY_COMMAS else _DECODER
    try:
        text = raw.decode()
        body = decoder.decode(text)
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"the body is not UTF-8: byte {error.start} is wrong") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        message = f"the body is not valid JSON: {error.msg} ({where})" if raw else "the body is empty"
        raise InvalidRequest(message) from None
    except RecursionError:
        raise InvalidRequest("the body is nested too deeply") from None
    except ValueError:  # all that is left: Python converts no longer ones
        raise InvalidRequest("the body has an integer of more than 4300 digits") from None
    if _SUSPECT_ESCAPE.search(text):
        _check_characters(body)
    return body


def _values(raw: bytes) -> int:
    """How many strings, lists and objects there are; more, where even that is few enough."""
    if len(raw) // 2 <= MAX_VALUES:  # none is shorter than two bytes
        return len(raw) // 2
    if (most := raw.count(b'"') // 2 + raw.count(b"[") + raw.count(b"{")) <= MAX_VALUES:
        return most
    unescaped = raw.replace(b"\\\\", b"").replace(b'\\"', b"")
    strings = unescaped.count(b'"') // 2
    if strings > MAX_VALUES:
        return strings
    between = b"".join(unescaped.split(b'"')[::2])
    return strings + between.count(b"[") + between.count(b"{")


# --- the decoders


def _object(members: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(members)
    if len(members) > MAX_MEMBERS:
        raise InvalidRequest(f"the body has an object with more than {MAX_MEMBERS} members")
    if len(found) < len(members):
        twice = Counter(name for name, _ in members).most_common(1)[0][0]
        raise InvalidRequest(f"the body has {shown(twice)} twice in one object", param=path([twice]))
    return found


def _float(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise InvalidRequest(f"the body has a number that is too large: {text[:LONGEST_NAME]}")
    return number


def _no_number(text: str) -> NoReturn:
    raise InvalidRequest(f"the body is not valid JSON: there is no {text} in JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_no_number)


class _Piecewise(json.JSONDecoder):
    """The same in Python, which lets others run, but for pieces of long lists of numbers."""

    def __init__(self) -> None:
        super().__init__(object_pairs_hook=_object, parse_float=_float, parse_constant=_no_number)
        self.parse_array = self._array
        self.scan_once = scanner.py_make_scanner(self)  # type: ignore[attr-defined]

    @staticmethod
    def _array(begin: tuple[str, int], scan_once: Any) -> tuple[list[Any], int]:
        text, end = last = begin
        numbers: list[Any] = []
        while piece := _NUMBERS.match(text, end, end + PIECE):
            try:
                found = _DECODER.decode(f"[{text[end : piece.end() - 1]}]")
            except ValueError:  # is raised again, with the right place
                break
            if not found:
                break
            numbers += found
            last, end = (text, end), piece.end()
        rest, after = JSONArray((text, end), scan_once)
        if numbers and not rest:  # a comma, and then the end of the list
            JSONArray(last, scan_once)  # raises
        numbers += rest
        return numbers, after


_PIECEWISE = _Piecewise()


def _check_characters(body: Any) -> None:
    """Walks without recursion: the body may be as deep as the decoder lets it."""
    open_items: list[tuple[Place, Any]] = [((), body)]
    while open_items:
        place, value = open_items.pop()
        if isinstance(value, str):
            if _SURROGATE.search(value):
                raise _not_text(place, "half of a surrogate pair")
        elif isinstance(value, dict):
            if any(_NOT_IN_NAMES.search(name) for name in value):
                raise _not_text(place, "a name with a NUL or half of a surrogate pair")
            open_items += [((*place, name), inner) for name, inner in value.items()]
        elif isinstance(value, list):
            open_items += [((*place, index), inner) for index, inner in enumerate(value)]


def _not_text(place: Place, what: str) -> InvalidRequest:
    where = path(place)
    return InvalidRequest(f"{where or 'the body'} is not valid text: it has {what}", param=where or None)
