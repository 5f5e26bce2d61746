"""Prompts from text files, and their split into training and held-out prompts."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

HELD_OUT_EVERY = 6  # of the prompts of each file; files that are sorted by category lose the same share of each
PIECE_CHARS = 600  # of a plain text


def read_prompts(paths: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Training prompts and held-out prompts: user messages, without duplicates between the two."""
    training: list[str] = []
    held_out: list[str] = []
    for path in paths:
        for number, prompt in enumerate(_prompts(path)):
            (held_out if number % HELD_OUT_EVERY == HELD_OUT_EVERY - 1 else training).append(prompt)
    kept = set(held_out)
    return [prompt for prompt in dict.fromkeys(training) if prompt not in kept], list(dict.fromkeys(held_out))


def _prompts(path: Path) -> Iterator[str]:
    if path.name.removesuffix(".gz").endswith(".jsonl"):
        yield from _json_lines(path)
    else:
        yield from (f"Continue this text:\n\n{piece}" for piece in _pieces(_read(path)))


def _json_lines(path: Path) -> Iterator[str]:
    """The first user message of each line: `turns`, `messages`, `prompt` or `text`."""
    for number, line in enumerate(_read(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            raise SystemExit(f"{path}, line {number}: not JSON ({error})") from None
        prompt = _first_message(entry)
        if prompt is None:
            raise SystemExit(f'{path}, line {number}: no "turns", "messages", "prompt" or "text"')
        yield prompt


def _first_message(entry: object) -> str | None:
    if not isinstance(entry, dict):
        return None
    if turns := entry.get("turns"):
        return str(turns[0])
    users = [message.get("content") for message in entry.get("messages", []) if message.get("role") == "user"]
    found = (users or [entry.get("prompt") or entry.get("text")])[0]
    return found if isinstance(found, str) else None


def _pieces(text: str) -> Iterator[str]:
    """Whole lines, about PIECE_CHARS together."""
    piece: list[str] = []
    for line in text.splitlines():
        piece.append(line)
        if sum(map(len, piece)) >= PIECE_CHARS:
            yield "\n".join(piece).strip()
            piece = []
    if rest := "\n".join(piece).strip():
        yield rest


def _read(path: Path) -> str:
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise SystemExit(f"cannot read {path}: {error}") from None
