"""Sentences and words of texts, and the text of a message."""

from __future__ import annotations

import re
from collections.abc import Iterator

import msgspec

from penstock.flow import Message

PIECE = 1 << 16  # characters searched by one call, which holds the interpreter
# Where a sentence ends: behind the space after its punctuation, or with its line. Each character is read once.
_END = re.compile(r"\n+|[。！？]+|(?<=[.!?…])[ \t]+|(?<=[.!?…][\"')\]])[ \t]+")
_WORD = re.compile(r"\w+")
_UNSPACED = re.compile(
    r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff\u0e00-\u0e7f]"
)  # scripts without spaces between words


def sentences(text: str) -> list[str]:
    """Concatenated they are the text."""
    ends = [*_ends(text)]
    return [text[begin:end] for begin, end in zip([0, *ends], [*ends, len(text)], strict=True) if begin < end]


def _ends(text: str) -> Iterator[int]:
    begin = 0
    while begin < len(text):
        border = begin + PIECE
        for found in _END.finditer(text, begin, border):
            end = found.end()
            if end == border and (whole := _END.match(text, found.start())) is not None:
                end = whole.end()
            yield end
            border = max(border, end)
        begin = border


def words(text: str) -> list[str]:
    """In lower case; pairs of characters in scripts without spaces."""
    return list(_words(text))


def _words(text: str) -> Iterator[str]:
    for begin in range(0, len(text), PIECE):
        for word in _WORD.findall(text[begin : begin + PIECE].casefold()):
            if _UNSPACED.search(word):
                yield from (word[place : place + 2] for place in range(max(len(word) - 1, 1)))
            else:
                yield word


def message_text(message: Message) -> str:
    """All that a template may show of it."""
    parts = [message.get("content") or "", message.get("reasoning_content") or ""]
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        arguments = function.get("arguments") or ""
        shown = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        parts.append(f"{function.get('name') or ''} {shown}")
    return "\n".join(part for part in parts if part)
