"""The text inside JSON that arrives in pieces: a rule for `secret` has to see `\\u0073ecret` as well.

Only escapes are read. Brackets, quotes and keys stay as they are, so that rules can match those too.
"""

from __future__ import annotations

from penstock.stream.output_filter import FilterState, PartFilter

_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", '"': '"', "/": "/", "\\": "\\"}


class JsonFilter:
    """A PartFilter of JSON: passes its text on with escapes read, and shows the JSON of what may be shown."""

    def __init__(self, text: PartFilter) -> None:
        self.state: FilterState | None = None
        self._text = text
        self._unread = ""  # the beginning of an escape
        self._held: list[str] = []  # the JSON of each character that is held back

    @property
    def hit(self) -> str | None:
        return self._text.hit

    def push(self, text: str) -> str:
        pieces, self._unread = split_characters(self._unread + text)
        return self._show(pieces, self._text.push("".join(map(unescape, pieces))))

    def flush(self) -> str:
        rest, self._unread = list(self._unread), ""  # half an escape is plain text
        shown = self._show(rest, self._text.push("".join(rest))) if rest else ""
        return shown if self.hit is not None else shown + self._show([], self._text.flush())

    def _show(self, pieces: list[str], shown: str) -> str:
        held = [*self._held, *pieces]
        self._held = held[len(shown) :]
        return "".join(held[: len(shown)])


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
