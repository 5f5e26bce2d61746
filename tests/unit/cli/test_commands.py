"""The group of all commands: names that do not exist, and the help texts of all options."""

from __future__ import annotations

from typing import Any, get_args

import click
import pytest
from click.testing import CliRunner

from penstock.cli import COMMANDS, penstock
from penstock.cli import top as top_module
from penstock.settings.sections import KvDtype

WIDTH = 100  # columns of the terminal


def call(*arguments: str) -> Any:
    return CliRunner().invoke(penstock, list(arguments), terminal_width=WIDTH, max_content_width=WIDTH)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("serv", "No such command 'serv'; did you mean serve?\n"),
        ("model", "did you mean models?"),
        ("xyzzy", "No such command 'xyzzy'.\n"),
    ],
)
def test_a_command_that_there_is_not(name: str, said: str) -> None:
    result = call(name, "--port", "1")
    assert result.exit_code == 2
    assert said in result.output


def test_an_option_before_the_command_is_no_command() -> None:
    assert "No such option" in call("--prot", "1", "serve").output


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_terminal(command: str) -> None:
    result = call(command, "--help")
    assert result.exit_code == 0
    assert [line for line in result.output.splitlines() if len(line) > WIDTH] == []


def test_help_names_the_types_of_the_kv_cache() -> None:
    command = penstock.get_command(click.Context(penstock), "serve")  # type: ignore[attr-defined]
    (option,) = [one for one in command.params if one.name == "kv_dtype"]
    assert option.metavar == "DTYPE"
    named = {part for choice in get_args(KvDtype) for part in choice.split(",")}
    assert [name for name in sorted(named) if name not in option.help.partition(".")[0]] == []
    refused = call("serve", "--kv-dtype", "int5")
    assert "'int8,int4'" in refused.output


class Asked(Exception):
    pass


@pytest.mark.parametrize(
    ("arguments", "url"),
    [
        ([], "http://127.0.0.1:8000"),
        (["http://a:1"], "http://a:1"),
        (["--server", "http://a:1"], "http://a:1"),
        (["--url", "http://a:1"], "http://a:1"),
    ],
)
def test_the_server_that_top_watches(arguments: list[str], url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def remote(asked: str, key: str | None) -> Any:
        raise Asked(asked)

    monkeypatch.setattr(top_module, "Remote", remote)
    result = call("top", "--once", *arguments)
    assert isinstance(result.exception, Asked)
    assert str(result.exception) == url


def test_top_watches_one_server() -> None:
    result = call("top", "http://a:1", "--server", "http://127.0.0.1:8000")
    assert result.exit_code == 2
    assert "URL and --server exclude each other" in result.output
