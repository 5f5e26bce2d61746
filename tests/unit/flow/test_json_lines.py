from __future__ import annotations

import json
import sys

import msgspec

from penstock.flow.json_lines import escape_separators


def test_json_of_every_character_stays_on_one_line() -> None:
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, sys.maxunicode + 1)])) + "\\\u2028"
    data = escape_separators(msgspec.json.encode(text))
    assert json.loads(data) == text
    assert len(data.decode().splitlines()) == 1
