"""Commands that use a running server: their output is what the library gives for the same model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from helpers.server_process import Server
from penstock import LLM, SamplingParams
from penstock.cli import penstock, served_model
from penstock.errors import InvalidRequest, ModelNotFound, PenstockError

GREEDY = ("--temperature", "0", "--max-tokens", "12")
PARAMS = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(autouse=True)
def data_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


def call(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(penstock, arguments, input=stdin, catch_exceptions=False)


def test_run_gives_what_the_library_gives(server: Server, shared: LLM) -> None:
    expected = shared.chat([{"role": "user", "content": "the tea"}], PARAMS).text
    done = call("run", "the tea", "--server", server.url, *GREEDY)
    assert done.stdout == expected + "\n"
    assert f"{server.model} of {server.url}" in done.stderr
    raw = call("run", "the tea", "--server", server.url, "--raw", *GREEDY)
    assert raw.stdout == shared.generate("the tea", PARAMS).text + "\n"


def test_run_constrained_and_with_several_answers(server: Server, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"]}')
    options = ("--server", server.url, "--max-tokens", "40", "--seed", "1")  # another may end in white space
    assert call("run", "x", "--choice", "yes", "--choice", "no", *options).stdout in ("yes\n", "no\n")
    assert json.loads(call("run", "x", "--schema", str(schema), *options).stdout)["n"] in (1, 2)
    two = call("run", "x", "--n", "2", "--regex", "a|b", *options).stdout.splitlines()
    assert [line[:4] for line in two] == ["[0] ", "[1] "]
    answer = json.loads(call("run", "x", "--json", *options).stdout)
    assert (answer["object"], answer["usage"]["completion_tokens"] > 0) == ("chat.completion", True)


def test_a_chat_keeps_its_history_on_a_server(server: Server, shared: LLM) -> None:
    first = shared.chat([{"role": "user", "content": "one"}], PARAMS).text
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": first}]
    second = shared.chat([*turns, {"role": "user", "content": "two"}], PARAMS).text
    done = call("chat", "--server", server.url, *GREEDY, stdin="one\ntwo\n/model\n/model nonesuch\n/exit\n")
    assert done.stdout == f"{first}\n{second}\n"
    assert f"{server.model}  (in use)" in done.stderr
    assert "has no model 'nonesuch'" in done.stderr


def test_a_server_at_the_default_address_is_used_and_named(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(served_model, "DEFAULT_URL", server.url)
    assert f"of the server at {server.url}" in call("run", "hi", *GREEDY).stderr
    assert served_model.look_around(server.model, None) is not None
    assert served_model.look_around("nonesuch", None) is None
    monkeypatch.setattr(served_model, "DEFAULT_URL", "http://127.0.0.1:9")
    assert served_model.look_around(None, None) is None


def test_what_a_server_cannot_do_is_said(server: Server) -> None:
    for arguments, error, says in (
        (("--server", server.url, "--threads", "2"), InvalidRequest, "--server excludes --threads"),
        (("--server", server.url, "--local"), InvalidRequest, "--server excludes --local"),
        (("--server", server.url, "--model", "nonesuch"), ModelNotFound, "has no model 'nonesuch'"),
        (("--server", "http://127.0.0.1:9"), PenstockError, "no server at"),
        (("--server", server.url, "--max-tokens", "10000000"), PenstockError, "max_tokens"),
    ):
        with pytest.raises(error, match=says):
            call("run", "hi", *arguments)


def test_ps_lists_the_models(server: Server) -> None:
    assert server.model in call("ps", "--server", server.url).stdout
    (listed,) = json.loads(call("ps", "--server", server.url, "--json").stdout)
    assert (listed["id"], listed["state"]) == (server.model, "ready")


@pytest.mark.parametrize("pace", [("--concurrency", "2"), ("--rate", "200"), ("--completions",)])
def test_bench_measures_every_request(server: Server, tmp_path: Path, pace: tuple[str, ...]) -> None:
    page = tmp_path / "report.html"
    lengths = ("--requests", "4", "--input-tokens", "8:12", "--output-tokens", "3")
    done = call(
        "bench", "--server", server.url, *lengths, *pace, "--e2e-target", "60000", "--html", str(page), "--json"
    )
    found = json.loads(done.stdout)
    assert (done.exit_code, found["answered"], found["errors"]) == (0, 4, {})
    assert found["output_tokens"] == 12  # answers go on to their planned length
    assert found["good_share"] == 1.0
    assert "TTFT" in page.read_text()


def test_bench_counts_errors_and_shows_tables(server: Server) -> None:
    lengths = ("--requests", "2", "--input-tokens", "4", "--output-tokens", "10000000")
    done = call("bench", "--server", server.url, *lengths)
    assert done.exit_code == 1
    assert "2 x 400" in done.stdout
    assert "milliseconds" in call("bench", "--server", server.url, "--requests", "2", "--output-tokens", "2").stdout
