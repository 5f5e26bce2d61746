from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from helpers.batch_bench import CHAT, line
from penstock.batch import input_file
from penstock.batch.input_file import InputFile, body_of
from penstock.batch.records import Line
from penstock.errors import ModelNotFound

MAX_LINE = 400


def find_model(name: str) -> str:
    models = {"tiny": "tiny", "other": "other", "alias": "tiny"}
    if name not in models:
        raise ModelNotFound(f"the model {name!r} does not exist", param="model")
    return models[name]


def read(path: Path, *entries: Any) -> InputFile:
    texts = [entry if isinstance(entry, bytes) else json.dumps(entry).encode() for entry in entries]
    path.write_bytes(b"\n".join(texts))
    with path.open("rb") as file:
        return InputFile(file, CHAT, max_line=MAX_LINE, find_model=find_model)


def read_body(path: Path, one: Line) -> bytes:
    return body_of(path.read_bytes()[one.offset : one.offset + one.size])


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "input"


def test_lines_are_found_with_their_place(path: Path) -> None:
    found = read(path, line("a"), b"  ", line("b"), b"")
    assert not found.errors
    assert [(one.number, one.custom_id, one.model) for one in found.lines] == [(1, "a", "tiny"), (3, "b", "tiny")]
    assert [json.loads(read_body(path, one))["messages"][0]["content"] for one in found.lines] == ["a", "b"]
    assert found.model == "tiny"


def test_windows_line_ends_and_a_byte_order_mark_are_fine(path: Path) -> None:
    texts = [json.dumps(line(name)).encode() + b"\r" for name in "ab"]
    found = read(path, b"\xef\xbb\xbf" + texts[0], texts[1])
    assert not found.errors
    assert json.loads(read_body(path, found.lines[0]))["model"] == "tiny"
    assert json.loads(read_body(path, found.lines[1]))["messages"][0]["content"] == "b"


def test_several_models_are_no_model(path: Path) -> None:
    found = read(path, line("a"), line("b", body={"model": "other"}))
    assert not found.errors
    assert found.model is None


def test_an_alias_is_the_model_that_it_stands_for(path: Path) -> None:
    found = read(path, line("a"), line("b", body={"model": "alias"}))
    assert (found.model, [one.model for one in found.lines]) == ("tiny", ["tiny", "tiny"])


@pytest.mark.parametrize(
    ("entry", "code", "param"),
    [
        (b"{", "invalid_json_line", None),
        (b"[]", "invalid_json_line", None),
        (b"[" * 100_000, "line_too_long", None),
        (b"[" * 300, "invalid_json_line", None),
        ({"custom_id": "b", "method": "POST", "url": CHAT}, "missing_required_parameter", "body"),
        (line("b", extra=1), "unknown_parameter", "extra"),
        (line("a"), "duplicate_custom_id", "custom_id"),
        (line(""), "invalid_custom_id", "custom_id"),
        (line("a\0b"), "invalid_custom_id", "custom_id"),
        (line("b", custom_id=7), "invalid_parameter", "custom_id"),
        (line("b", method="GET"), "invalid_method", "method"),
        (line("b", url="/v1/completions"), "invalid_url", "url"),
        (line("b", body=[]), "invalid_body", "body"),
        (line("b", body={"model": "tiny", "stream": True}), "invalid_body", "body.stream"),
        (json.dumps(line("b")).replace("tiny", "\\udc00").encode(), "invalid_json_line", None),
        (
            b'{"custom_id":"b","method":"POST","url":"%s","body":{"model":"\xff"}}' % CHAT.encode(),
            "invalid_body",
            "body",
        ),
        (line("b", body={}), "missing_required_parameter", "body.model"),
        (line("b", body={"model": 3}), "missing_required_parameter", "body.model"),
        (line("b", body={"model": "huge"}), "model_not_found", "body.model"),
        (line("b", body={"model": "tiny", "text": "x" * MAX_LINE}), "line_too_long", None),
    ],
)
def test_a_wrong_line_is_an_error_with_its_number(path: Path, entry: Any, code: str, param: str | None) -> None:
    found = read(path, line("a"), entry, line("c"))
    assert [(error.code, error.line, error.param) for error in found.errors] == [(code, 2, param)]
    assert found.errors[0].message
    assert [one.custom_id for one in found.lines] == ["a", "c"]


def test_a_file_without_lines_is_an_error(path: Path) -> None:
    (error,) = read(path, b"", b" \t").errors
    assert (error.code, error.line) == ("empty_file", None)


def test_errors_and_lines_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(read(path, *[b"x"] * 1000).errors) == input_file.MAX_ERRORS
    monkeypatch.setattr(input_file, "MAX_LINES", 2)
    (error,) = read(path, line("a"), line("b"), line("c")).errors
    assert error.code == "too_many_requests"
