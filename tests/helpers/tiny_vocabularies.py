"""GGUF headers with tiny vocabularies."""

from __future__ import annotations

from typing import Any

from penstock.store.gguf import Header

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

LETTERS = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]  # of the 256 bytes


def header(architecture: str = "llama", **tokenizer: Any) -> Header:
    metadata = {f"tokenizer.ggml.{name}": value for name, value in tokenizer.items() if value is not None}
    return Header({"general.architecture": architecture, **metadata}, {})


def byte_level(**changes: Any) -> Header:
    """Every byte is a token, and so are the words "ab", "abc" and " ab"."""
    tokens = [*LETTERS, "ab", "abc", "Ġab", "<|start|>", "<|end|>"]
    values: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": tokens,
        "token_type": [NORMAL] * (len(tokens) - 2) + [CONTROL] * 2,
        "merges": ["a b", "ab c", "Ġ ab"],
        "bos_token_id": len(tokens) - 2,
        "eos_token_id": len(tokens) - 1,
    }
    return header(**(values | changes))


def sentencepiece(**changes: Any) -> Header:
    pieces = ["▁", "a", "b", "c", "▁a", "ab", "bc", "▁ab", "▁abc"]
    scores = [-90.0, -91.0, -92.0, -93.0, -4.0, -2.0, -1.0, -3.0, -5.0]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    values: dict[str, Any] = {
        "model": "llama",
        "tokens": tokens,
        "token_type": [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)],
        "scores": [0.0] * 259 + scores,
    }
    return header(**(values | changes))


def unigram(**changes: Any) -> Header:
    tokens = ["<pad>", "</s>", "<unk>", "▁", "a", "b", "▁a", "ab", "▁ab"]
    values: dict[str, Any] = {
        "model": "t5",
        "tokens": tokens,
        "token_type": [CONTROL, CONTROL, UNKNOWN, *[NORMAL] * 6],
        "scores": [0.0, 0.0, 0.0, -2.0, -2.0, -2.0, -2.5, -1.0, -4.0],
        "add_space_prefix": True,
    }
    return header(**(values | changes))
