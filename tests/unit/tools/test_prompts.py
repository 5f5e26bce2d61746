from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from draft_training.prompts import read_prompts


def test_every_sixth_prompt_of_a_file_is_held_out(tmp_path: Path) -> None:
    questions = tmp_path / "questions.jsonl.gz"
    lines = [{"turns": [f"question {number}", "and then?"]} for number in range(13)]
    questions.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in lines).encode()))
    training, held_out = read_prompts([questions])
    assert held_out == ["question 5", "question 11"]
    assert training == [f"question {number}" for number in range(13) if number not in (5, 11)]


def test_a_held_out_prompt_is_never_trained_on(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"prompt": f"{n % 6}"}) + "\n" for n in range(12)))
    training, held_out = read_prompts([tmp_path / "a.jsonl"])
    assert (training, held_out) == (["0", "1", "2", "3", "4"], ["5"])


def test_plain_text_is_cut_at_line_ends(tmp_path: Path) -> None:
    lines = [f"line {number} " + "x" * 90 for number in range(20)]
    (tmp_path / "poem.txt").write_text("\n".join(lines))
    training, _ = read_prompts([tmp_path / "poem.txt"])
    pieces = [prompt.removeprefix("Continue this text:\n\n") for prompt in training]
    assert [line for piece in pieces for line in piece.splitlines()] == lines
    assert len(pieces) == 3


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}, "u"),
        ({"prompt": "p"}, "p"),
        ({"text": "t"}, "t"),
    ],
)
def test_fields(tmp_path: Path, line: dict[str, object], expected: str) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps(line))
    assert read_prompts([tmp_path / "a.jsonl"])[0] == [expected]


@pytest.mark.parametrize(("line", "words"), [("{", "line 1: not JSON"), ('{"answer": 3}', 'line 1: no "turns"')])
def test_what_is_wrong_is_named(tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "a.jsonl").write_text(line)
    with pytest.raises(SystemExit, match=words):
        read_prompts([tmp_path / "a.jsonl"])
    with pytest.raises(SystemExit, match="cannot read"):
        read_prompts([tmp_path / "none.jsonl"])
