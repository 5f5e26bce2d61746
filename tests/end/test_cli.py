"""The command line as people use it: a real process, its output and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import tiny_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("llama"))


def penstock(*arguments: str, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("penstock")), *arguments]
    env = {**os.environ, "PENSTOCK_THREADS": "1", **environ}
    return subprocess.run(command, input=stdin, capture_output=True, text=True, env=env, timeout=120)


def test_run_prints_the_answer_and_nothing_else_on_stdout(folder: Path) -> None:
    done = penstock("run", "the tea", "--model", str(folder), "--max-tokens", "8", "--temperature", "0", "--raw")
    again = penstock(
        "run", "-", "--model", str(folder), "--max-tokens", "8", "--temperature", "0", "--raw", stdin="the tea"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert again.stdout == done.stdout
    assert "ready in" in done.stderr


def test_run_json(folder: Path) -> None:
    done = penstock("run", "the tea", "--model", str(folder), "--max-tokens", "4", "--seed", "3", "--n", "2", "--json")
    result = json.loads(done.stdout)
    assert [choice["index"] for choice in result["choices"]] == [0, 1]
    assert all(choice["finish"] in ("length", "end") for choice in result["choices"])
    assert result["choices"][0]["timings"]["first_token_s"] > 0
    assert result["prompt_tokens"][0] == 0


def test_a_chat_through_a_pipe(folder: Path) -> None:
    done = penstock("chat", "--model", str(folder), "--max-tokens", "5", stdin="hello\n/reset\nagain\n")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") >= 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "hi", "--model", "nonesuch"], "no model 'nonesuch'"),
        (["run", "hi", "--temperature", "-1"], "temperature must be in"),
        (["run", "hi", "--n", "0"], "n must be in"),
        (["run", "hi", "--block-size", "0"], "block_size"),
        (["run", " "], "the prompt is empty"),
        (["pull", "pypi:nonsense"], "pypi:"),
        (["run", "hi", "--config", "/nonexistent.toml"], "cannot read settings file"),
    ],
)
def test_an_error_is_one_line_and_a_bad_exit_code(arguments: list[str], says: str) -> None:
    done = penstock(*arguments)
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: ")
    assert says in done.stderr


def test_debug_shows_the_trace() -> None:
    assert "Traceback" in penstock("run", "hi", "--model", "nonesuch", "--debug").stderr


def test_usage_errors_exit_with_two() -> None:
    assert penstock("run").returncode == 2
    assert penstock("frobnicate").returncode == 2


def test_models_lists_the_catalogue(tmp_path: Path) -> None:
    listed = json.loads(penstock("models", "--json", PENSTOCK_CACHE=str(tmp_path)).stdout)
    assert {"smollm2", "qwen2.5-coder-1.5b"} <= {model["name"] for model in listed}
    assert not any(model["pulled"] for model in listed)
    assert "smollm2" in penstock("models").stdout


def test_help_needs_no_torch() -> None:
    code = "import sys, penstock.cli as cli; cli.penstock.main(['run', '--help'], standalone_mode=False)"
    check = "assert 'penstock.cli.run' in sys.modules and 'torch' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", f"{code}; {check}"], capture_output=True, timeout=60).returncode == 0
