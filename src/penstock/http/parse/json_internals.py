"""All that Penstock uses of the json module beyond its documented API: the Python functions behind its decoder, which
`json_body` reuses to decode long bodies in pieces. Tried with Python 3.11 to 3.14.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from json import decoder, scanner
from types import FunctionType
from typing import Any

from penstock.system.slow_paths import warn_slow_path

# None where this Python has none: `checked` then says so.
scan_string: Any = getattr(decoder, "scanstring", None)  # (text, begin, strict) -> string, end
scan_array: Any = getattr(decoder, "JSONArray", None)  # ((text, begin), scan_once, whitespace) -> list, end

SAMPLES = (
    '{"a": [1, -2.5e3, true, null, "é\\u00e9\\ud83d\\ude00\\n", {}], "b": {"c": [], "d": [[], [1,2]]}, "": ""}',
    ' [ "x" , { "y" : 0 } ] ',
    '{"a" 1}',
    '{"a": [1,]}',
    '{"a": "b',
    "[1, 2",
    "",
)


def object_scanner(scan_name: Callable[..., Any], whitespace: Callable[..., Any]) -> Callable[..., Any]:
    """json's function for objects, with others for names and white space."""
    code = decoder.JSONObject.__code__  # type: ignore[attr-defined]
    return FunctionType(code, {**vars(decoder), "scanstring": scan_name}, "members", (None, whitespace, " \t\n\r"))


def scanner_factory(number: re.Pattern[str]) -> Callable[[json.JSONDecoder], Any]:
    """json's `make_scanner` in Python, with another pattern for numbers."""
    code = scanner.py_make_scanner.__code__  # type: ignore[attr-defined]
    return FunctionType(code, {**vars(scanner), "NUMBER_RE": number})


def checked(build: Callable[[], json.JSONDecoder], plain: json.JSONDecoder) -> json.JSONDecoder:
    """The decoder that `build` gives if it decodes like `plain`, errors included; else `plain`."""
    try:
        built = build()
        right = all(_outcome(built, sample) == _outcome(plain, sample) for sample in SAMPLES)
    except Exception:
        right = False
    if right:
        return built
    warn_slow_path("Python", "json decoder", "the server handles no other request while it decodes a long body")
    return plain


def _outcome(tried: json.JSONDecoder, text: str) -> Any:
    try:
        return tried.decode(text)
    except json.JSONDecodeError as error:
        return error.msg, error.pos
