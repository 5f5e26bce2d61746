from __future__ import annotations

from typing import Any

import pytest

from penstock.tokenize.spelling import byte_level, byte_or_piece, piece, spelling_of

REPLACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


@pytest.mark.parametrize(
    ("decoder", "to_bytes", "drops_first_space"),
    [
        ({"type": "ByteLevel", "add_prefix_space": True}, byte_level, False),
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE, STRIP]}, byte_or_piece, True),  # Llama 2
        ({"type": "Sequence", "decoders": [REPLACE, FALLBACK, FUSE]}, byte_or_piece, False),  # Gemma
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, piece, True),  # T5
        ({"type": "Metaspace", "replacement": "▁", "add_prefix_space": True}, piece, True),  # older files
        ({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, piece, False),
    ],
)
def test_decoders_whose_tokens_are_bytes_are_known(decoder: Any, to_bytes: Any, drops_first_space: bool) -> None:
    spelling = spelling_of(decoder)

    assert spelling is not None
    assert spelling.to_bytes is to_bytes
    assert spelling.drops_first_space is drops_first_space


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        {"type": "Metaspace", "replacement": "_", "prepend_scheme": "always"},
        {"type": "Sequence", "decoders": []},
        {"type": "Sequence", "decoders": [FALLBACK, FUSE]},
        {"type": "Sequence", "decoders": [REPLACE, {"type": "Strip", "content": " ", "start": 0, "stop": 1}]},
        {"type": "Sequence", "decoders": [REPLACE, {"type": "CTC"}]},
    ],
)
def test_other_decoders_are_not_taken_for_one_of_them(decoder: Any) -> None:
    assert spelling_of(decoder) is None


@pytest.mark.parametrize(
    ("token", "expected"),
    [("Ġworld", b" world"), ("âĤ¬", "€".encode()), ("Ċ", b"\n"), ("ł", b"\xa0"), ("<｜end｜>", "<｜end｜>".encode())],
)
def test_byte_level_letters(token: str, expected: bytes) -> None:
    assert byte_level(token) == expected


@pytest.mark.parametrize(
    ("token", "expected"),
    [("▁wo▁", b" wo "), ("<0xE2>", b"\xe2"), ("<0xZZ>", b"<0xZZ>"), ("<0x0A>x", b"<0x0A>x"), ("é", "é".encode())],
)
def test_sentencepiece_tokens(token: str, expected: bytes) -> None:
    assert byte_or_piece(token) == expected
