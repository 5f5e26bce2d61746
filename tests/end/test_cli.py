"""The command line as people use it: a real process, its output and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import tiny_models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("llama"))


COMMAND = str(Path(sys.executable).with_name("penstock"))


def penstock(*arguments: str | bytes, stdin: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    command = [COMMAND, *arguments]
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


NO_OTHER_PROCESS = """
import sys

def refuse(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"):
        raise RuntimeError(f"{event}: there is to be one process")

sys.addaudithook(refuse)
"""


@pytest.mark.parametrize(("command", "stdin"), [(("run", "hello"), ""), (("chat",), "hello\n")])
def test_one_process_is_enough(folder: Path, tmp_path: Path, command: tuple[str, ...], stdin: str) -> None:
    (tmp_path / "sitecustomize.py").write_text(NO_OTHER_PROCESS)
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    options = ("--model", str(folder), "--device", "cpu", "--max-tokens", "5")
    done = penstock(*command, *options, stdin=stdin, PYTHONPATH=path)
    assert (done.returncode, done.stdout != "") == (0, True), done.stderr
    isolated = penstock(*command, *options, "--isolate", stdin=stdin, PYTHONPATH=path)
    assert (isolated.returncode, "one process" in isolated.stderr) == (1, True)  # so the hook works


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["run", "hi", "--model", "nonesuch"], "no model 'nonesuch'"),
        (["run", "hi", "--temperature", "-1"], "temperature must be in"),
        (["run", "hi", "--temperature", "99"], "temperature must be in [0.0, 2.0], got 99.0"),
        (["chat", "--temperature", "2.1"], "temperature must be in [0.0, 2.0]"),
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


@pytest.mark.parametrize("handler", ["strict", "surrogateescape"])  # by the locale
def test_a_prompt_that_is_no_text_is_refused_before_a_model_is_looked_for(handler: str) -> None:
    piped = subprocess.run(
        [COMMAND, "run", "-", "--model", "nonesuch"],
        input=b"caf\xe9",
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": f"utf-8:{handler}"},
        timeout=120,
    )
    written = penstock("run", b"caf\xe9", "--model", "nonesuch")
    assert piped.stderr.decode() == written.stderr == "error: the prompt is not UTF-8 text\n"


@pytest.mark.parametrize("command", ["run -", "chat"])
def test_standard_input_may_be_closed(command: str) -> None:
    script = f'exec "$0" {command} --model nonesuch <&-'
    done = subprocess.run(["sh", "-c", script, COMMAND], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    assert done.stderr.startswith("error: standard input is closed")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nonesuch"], "no model 'nonesuch'"),
        (["FOLDER", "--kv-memory", "1KiB"], "kv_memory: 1.0 KiB hold no sequence"),
        (["--kv-memory", "much"], "kv_memory must be a size"),
        (["--config", "/nonexistent.toml"], "cannot read settings file"),
    ],
)
def test_where_log_lines_are_objects_so_is_the_error_that_ends_a_start(
    folder: Path, arguments: list[str], says: str
) -> None:
    given = [str(folder) if one == "FOLDER" else one for one in arguments]
    done = penstock("serve", *given, "--port", "0", "--device", "cpu", "--log-format", "json")
    *_, last = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 1
    assert last["level"] == "error"
    assert says in last["message"]
    assert "exception" not in last


def test_a_settings_file_says_how_its_own_faults_are_told(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text('[observe]\nlog_format = "json"\n[serve]\nprot = 1\n')
    told = json.loads(penstock("serve", "--config", str(config)).stderr)
    assert "did you mean port?" in told["message"]
    assert "Traceback" in json.loads(penstock("serve", "--config", str(config), "--debug").stderr)["exception"]


def test_a_missing_extra_is_told_before_an_engine_is_started(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['opentelemetry.exporter'] = None")
    options = ("--port", "0", "--device", "cpu", "--otel-endpoint", "http://127.0.0.1:9/")
    done = penstock("serve", str(folder), *options, PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == "error: otel_endpoint needs the extra: pip install 'penstock[otel]'\n"


def test_what_cannot_work_is_told_before_a_model_is_loaded(folder: Path, tmp_path: Path) -> None:
    """Where no engine can be built."""
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.modules['penstock.startup.build'] = None")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    schema = tmp_path / "bad.json"
    schema.write_text('{"type": "nonsense"}')
    for arguments, says in (
        (["--schema", str(schema)], "nonsense"),
        (["--kv-memory", "10TB"], "kv_memory: "),
    ):
        done = penstock("run", "hi", "--model", str(folder), *arguments, PYTHONPATH=path)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ")
        assert says in done.stderr
        assert "startup" not in done.stderr


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
