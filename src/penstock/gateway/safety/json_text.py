"""The text inside JSON: a rule for `secret` has to see `\\u0073ecret` as well.

Only escapes are read. Brackets, quotes and keys stay as they are, so that rules can match those too.
"""

from __future__ import annotations

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "/": "/", "\\": "\\"}


def split_characters(text: str) -> tuple[list[str], str]:
    """JSON as the pieces that make one character each, and the beginning of an escape at its end."""
    if "\\" not in text:
        return list(text), ""
    pieces, place = [], 0
    while place < len(text):
        size = 1
        if text[place] == "\\":
            size = 6 if text[place + 1 : place + 2] == "u" else 2
            if size == 6 and _is_high(text[place : place + 6]):
                follows = text[place + 6 : place + 8]
                if "\\u".startswith(follows) and len(follows) < 2:
                    break  # it may be half of a pair
                size = 12 if follows == "\\u" else 6
        if place + size > len(text):
            break
        pieces.append(text[place : place + size])
        place += size
    return pieces, text[place:]


def unescape(piece: str) -> str:
    """The character of a piece, always one."""
    if len(piece) == 1:
        return piece
    try:
        if len(piece) == 12:
            high, low = int(piece[2:6], 16), int(piece[8:], 16)
            return chr(0x10000 + ((high - 0xD800) << 10) + (low - 0xDC00)) if 0xDC00 <= low < 0xE000 else "\ufffd"
        if len(piece) == 6:
            return chr(int(piece[2:], 16))
    except ValueError:  # no hexadecimal digits
        return "\ufffd"
    return _ESCAPES.get(piece[1], piece[1])


def unescaped(text: str) -> str:
    """A whole text, with its escapes read."""
    pieces, rest = split_characters(text)
    return "".join(map(unescape, pieces)) + rest


def _is_high(escape: str) -> bool:
    """Of "\\ud83d": the first half of a pair."""
    return len(escape) == 6 and escape[2:4].lower() in ("d8", "d9", "da", "db")
