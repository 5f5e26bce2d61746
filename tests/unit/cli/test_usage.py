"""penstock usage: a table, JSON or CSV of what the server answers."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner

from penstock.cli import usage as module
from penstock.cli.usage import usage

ROW = {
    "requests": 1200, "input_tokens": 5, "cached_tokens": 1, "output_tokens": 2, "drafted_tokens": 0,
    "cost_usd": 0.5, "cache_savings_usd": 0.000001, "request_seconds": 1.0,
}  # fmt: skip
REPORT = {"group_by": ["model"], "data": [{"model": "a", **ROW}, {"model": "[b]", **ROW}], "total": ROW}


BY_KEY = {
    "group_by": ["key"], "total": ROW,
    "data": [{"key": "k1", "key_name": "front [end]", **ROW}, {"key": "k2", "key_name": "", **ROW}],
}  # fmt: skip


class FakeRemote:
    paths: ClassVar[list[str]] = []

    def __init__(self, url: str, key: str | None) -> None: ...

    def get(self, path: str) -> Any:
        self.paths.append(path)
        return BY_KEY if "group_by=key" in path else REPORT

    def text(self, path: str) -> str:
        self.paths.append(path)
        return "model,requests\r\n"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.setattr(module, "Remote", FakeRemote)
    FakeRemote.paths.clear()
    result = CliRunner().invoke(usage, list(arguments))
    assert result.exit_code == 0, result.output
    return result.output


def test_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(monkeypatch, "--from", "2026-11-01", "--tenant", "acme").splitlines()
    assert FakeRemote.paths == ["/usage?from=2026-11-01&group_by=model&tenant=acme"]
    assert [line.split()[0] for line in lines] == ["model", "a", "[b]", "total"]
    assert "1,200" in lines[1]
    assert "0.500000" in lines[1]


def test_keys_have_names(monkeypatch: pytest.MonkeyPatch) -> None:
    _, named, unnamed, _ = run(monkeypatch, "--by", "key").splitlines()
    assert named.startswith("front [end] (k1) ")
    assert unnamed.startswith("k2 ")


def test_json_and_csv(monkeypatch: pytest.MonkeyPatch) -> None:
    assert json.loads(run(monkeypatch, "--json")) == REPORT
    assert run(monkeypatch, "--csv", "--by", "day").startswith("model,requests")
    assert FakeRemote.paths == ["/usage?group_by=day&format=csv"]


def test_one_format_at_a_time() -> None:
    assert CliRunner().invoke(usage, ["--json", "--csv"]).exit_code == 2


def test_a_group_that_there_is_not_is_refused_before_the_server_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "Remote", None)
    for by, said in (
        ("bogus", "'bogus' is none of day, tenant, key, model\n"),
        ("day,modle", "did you mean model?"),
    ):
        result = CliRunner().invoke(usage, ["--by", by])
        assert result.exit_code == 2
        assert said in result.output
    run(monkeypatch, "--by", "")
    run(monkeypatch, "--by", "day, key")
