"""docs/GLOSSARY.md against the code: its files and symbols exist, and ten questions find the right file."""

from __future__ import annotations

import re
from functools import cache
from typing import NamedTuple

import pytest

from helpers.source_index import PACKAGE, ROOT, sources, symbols

ROW = re.compile(r"\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| `(?P<path>[^`]+)`(?:: (?P<symbols>`[^|]+`))? \|")


class Entry(NamedTuple):
    term: str
    meaning: str
    path: str
    symbols: tuple[str, ...]


@cache
def entries() -> list[Entry]:
    rows = [line for line in (ROOT / "docs" / "GLOSSARY.md").read_text().splitlines() if line.startswith("| ")][1:]
    found = []
    for row in rows:
        match = ROW.fullmatch(row)
        assert match, f"not a row of the glossary: {row}"
        symbols = tuple(re.findall(r"`([^`]+)`", match["symbols"] or ""))
        found.append(Entry(match["term"], match["meaning"], match["path"], symbols))
    return found


def test_each_term_is_there_once_in_order() -> None:
    terms = [entry.term for entry in entries()]
    assert len(terms) > 60
    assert terms == sorted(set(terms), key=str.lower)


def test_each_meaning_is_one_sentence() -> None:
    for entry in entries():
        assert re.fullmatch(r"[^.]*(\.\w[^.]*)*\.", entry.meaning), entry


@pytest.mark.parametrize("entry", entries(), ids=lambda entry: entry.term)
def test_each_file_exists_and_defines_the_symbols(entry: Entry) -> None:
    assert (PACKAGE / entry.path).exists()
    for symbol in entry.symbols:
        assert symbol in symbols(entry.path), f"{entry.path} does not define {symbol}"


# A stranger's question, as words to grep for, and the term of the glossary whose file it should find.
QUESTIONS = {
    ("sse",): "SSE",
    ("split-k", "decode"): "Decode",
    ("radix",): "Prefix cache",
    ("prefix", "lookup"): "Prefix cache",
    ("auth", "middleware"): "Authentication",
    ("top-p", "kernel"): "Top-p",
    ("stop", "string"): "Stop string",
    ("queue", "policy"): "Scheduler policy",
    ("cuda", "graph", "capture"): "CUDA graph",
    ("ipc",): "IPC",
    ("prometheus",): "Prometheus metrics",
}


@pytest.mark.parametrize("words", QUESTIONS, ids=" ".join)
def test_a_strangers_question_finds_its_file_in_the_first_two_results(words: tuple[str, ...]) -> None:
    (expected,) = [entry.path for entry in entries() if entry.term == QUESTIONS[words]]
    assert expected in search(words)[:2]
    in_path, in_symbols, _ = _score(expected, [_normal(word) for word in words])
    assert in_path or in_symbols or words == ("radix",)  # a synonym, which only the docstring has


def search(words: tuple[str, ...]) -> list[str]:
    """Files ranked by the number of words in their path, then in their public symbols, then in their text."""
    scores = {path: _score(path, [_normal(word) for word in words]) for path in sources()}
    return sorted((path for path in scores if any(scores[path])), key=lambda path: (scores[path], path), reverse=True)


def _score(path: str, words: list[str]) -> tuple[int, int, int]:
    public, text = _searched(path)
    return (
        sum(word in _normal(path) for word in words),
        sum(word in public for word in words),
        sum(text.count(word) for word in words),
    )


@cache
def _searched(path: str) -> tuple[str, str]:
    """Public symbols and text of a file."""
    public = [name for name in symbols(path) if not name.split(".")[-1].startswith("_")] if path.endswith(".py") else []
    return _normal("\n".join(public)), _normal(sources()[path])


def _normal(text: str) -> str:
    return text.lower().translate(_IGNORED)


_IGNORED = str.maketrans("", "", "-_ ")
