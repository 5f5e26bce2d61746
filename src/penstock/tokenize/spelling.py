"""How a vocabulary spells bytes in its token texts: every token is a few bytes of UTF-8, maybe half a character.

    byte-level     one letter per byte: "Ġworld" is b" world"
    SentencePiece  "▁" for a space, and "<0xE2>" for a byte that belongs to no known character

Which one it is follows from the `decoder` of its tokenizer.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

SPACE = "▁"


@dataclass(frozen=True, slots=True)
class Spelling:
    to_bytes: Callable[[str], bytes]
    drops_first_space: bool = False  # a space at the very start of a text was put there by the tokenizer


def spelling_of(decoder: Mapping[str, Any] | None) -> Spelling | None:
    """None: a decoder of another kind, which cannot be taken token by token."""
    match decoder:
        case {"type": "ByteLevel"}:
            return Spelling(byte_level)
        case {"type": "Sequence", "decoders": [*steps]}:
            return _sentencepiece(steps)
        case {"type": "Metaspace"}:
            return _sentencepiece([decoder])
    return None


def _sentencepiece(steps: list[Any]) -> Spelling | None:
    spaces = byte_fallback = drops_first_space = False
    for step in steps:
        match step:
            case {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}:
                spaces = True
            case {"type": "Metaspace", "replacement": "▁"}:
                spaces = True
                drops_first_space = step.get("prepend_scheme", "always") != "never"
            case {"type": "Strip", "content": " ", "start": 1, "stop": 0}:
                drops_first_space = True
            case {"type": "ByteFallback"}:
                byte_fallback = True
            case {"type": "Fuse"}:
                pass
            case _:
                return None
    if not spaces:
        return None
    return Spelling(byte_or_piece if byte_fallback else piece, drops_first_space)


def byte_level(token: str) -> bytes:
    try:
        return bytes(_BYTE_OF_LETTER[letter] for letter in token)
    except KeyError:  # an added token is written as it is
        return token.encode()


def piece(token: str) -> bytes:
    return token.replace(SPACE, " ").encode()


def byte_or_piece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes.fromhex(token[3:5])
        except ValueError:
            pass
    return piece(token)


def _byte_letters() -> dict[str, int]:
    """The 256 letters of byte-level vocabularies: printable Latin-1 stands for itself, the other bytes are numbered
    from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + rank): byte for rank, byte in enumerate(others)}


_BYTE_OF_LETTER = _byte_letters()
