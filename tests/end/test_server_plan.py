"""The planner over HTTP and on the command line, and `penstock top`, against a server that runs."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.server_process import PATIENCE_S, Server, environment

KEY = {"authorization": "Bearer a-key"}


@pytest.fixture(scope="module")
def locked(tiny: Path) -> Iterator[Server]:
    with Server(tiny, "--kv-memory", "20MB", "--context", 512, "--max-sequences", 4, api_key="a-key") as server:
        for number in range(3):
            server.client(api_key="a-key").completions.create(
                model=server.model, prompt=f"{number} pumps", max_tokens=40, extra_body={"ignore_eos": True}
            )
        yield server


def post(server: Server, path: str, body: dict[str, Any]) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=KEY, timeout=PATIENCE_S)


def command(*arguments: object, **env: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("penstock")
    return subprocess.run(
        [str(program), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        env={**environment(**env), "COLUMNS": "100"},
    )


def test_presets_begin_with_the_served_model(locked: Server) -> None:
    told = httpx.get(f"{locked.url}/plan/presets", headers=KEY, timeout=PATIENCE_S).json()
    assert told["model"] == told["models"][0]["name"] == locked.model
    assert {"llama-3.1-70b", "qwen3-0.6b"} <= {model["name"] for model in told["models"]}
    assert "h100-sxm" in {device["name"] for device in told["hardware"]}
    assert told["defaults"]["prompt_tokens"] == 1024
    assert told["cpu_defaults"]["kv"] == "float16"


def test_a_plan_of_another_model(locked: Server) -> None:
    body = {"model": "llama-3.1-70b", "hardware": "h100-sxm", "tensor_parallel": 4, "prompt_tokens": 3840}
    made = post(locked, "/plan", body).json()
    assert made["kv"]["request_bytes"] == 1.25 * (1 << 30)  # of 4,096 tokens
    assert made["measured"] is None


def test_measured_beside_the_theory(locked: Server) -> None:
    made = post(locked, "/plan", {"model": locked.model, "hardware": "this", "prompt_tokens": 100}).json()
    rows = {row["name"]: row for row in made["measured"]["rows"]}
    facts = httpx.get(f"{locked.url}/version", headers=KEY, timeout=PATIENCE_S).json()
    assert rows["weights_bytes"]["measured"] == facts["weights_bytes"]
    assert rows["kv_bytes_per_token"]["theory"] == made["kv"]["bytes_per_token"]
    assert rows["kv_bytes_per_token"]["ratio"] == pytest.approx(1, rel=0.01)
    assert rows["prefill_tokens_per_s"]["measured"] > 0
    assert rows["decode_tokens_per_s"]["measured"] > 0
    assert made["measured"]["output_tokens"] == 40
    assert made["measured"]["requests"] == 3


@pytest.mark.parametrize(
    ("path", "body", "status", "param"),
    [
        ("/plan", {"model": "nobody", "hardware": "t4"}, 404, "model"),
        ("/plan", {"model": "/etc", "hardware": "t4"}, 404, "model"),  # no files over HTTP
        ("/plan", {"model": "llama-3.1-8b", "hardware": "t4", "drafts": 0}, 400, "drafts"),
        ("/plan", {"model": "llama-3.1-8b", "hardware": {"memory_bytes": 1}}, 400, "hardware.bandwidth_bytes_s"),
        ("/plan/budget", {}, 400, "user"),
        ("/plan/budget", {"user": "a", "reserved_output": 0}, 400, "reserved_output"),
        ("/plan/budget", {"history": [{"role": "no body", "content": "a"}]}, 400, "history[0].role"),
    ],
)
def test_nonsense_is_refused_by_name(locked: Server, path: str, body: dict[str, Any], status: int, param: str) -> None:
    answer = post(locked, path, body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (status, param)


def test_a_budget_counts_as_the_server_does(locked: Server) -> None:
    history = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "yes?"}]
    body = {"system": "be brief", "history": history, "documents": ["a", "bc"], "user": "why?", "reserved_output": 9}
    made = post(locked, "/plan/budget", body).json()
    tagged = '<document id="1">\na\n</document>\n<document id="2">\nbc\n</document>'
    last = {"role": "user", "content": f"<documents>\n{tagged}\n</documents>\n\nwhy?"}
    messages = [{"role": "system", "content": "be brief"}, *history, last]
    whole = post(locked, "/tokenize", {"messages": messages}).json()
    assert made["prompt_tokens"] == whole["count"]
    assert made["context"] == whole["max_model_len"] == 512
    assert sum(part["tokens"] for part in made["parts"]) == made["used_tokens"] == whole["count"] + 9


def test_all_of_it_needs_the_key(locked: Server) -> None:
    assert locked.status("/plan/presets") == 401
    assert httpx.post(f"{locked.url}/plan", json={}, timeout=PATIENCE_S).status_code == 401
    assert httpx.post(f"{locked.url}/plan/budget", json={}, timeout=PATIENCE_S).status_code == 401


def test_the_command_line_asks_a_server(locked: Server) -> None:
    done = command("plan", "--server", locked.url, "--prompt-tokens", 100, "--json", PENSTOCK_API_KEY="a-key")
    assert done.returncode == 0, done.stderr
    made = json.loads(done.stdout)
    assert made["model"]["name"] == locked.model
    assert made["measured"]["requests"] == 3


def test_top_prints_a_frame(locked: Server) -> None:
    done = command("top", locked.url, "--once", PENSTOCK_API_KEY="a-key")
    assert done.returncode == 0, done.stderr
    for expected in (locked.model, "throughput", "KV cache", "no open requests"):
        assert expected in done.stdout


def test_top_lives_in_a_terminal_until_it_is_interrupted(locked: Server) -> None:
    program = Path(sys.executable).with_name("penstock")
    pid, terminal = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # whoever runs the tests may ignore it
        env = {**environment(), "PENSTOCK_API_KEY": "a-key", "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
        os.execve(program, [str(program), "top", locked.url, "--interval", "0.2"], env)
    shown = b""
    try:
        while shown.count(b"throughput") < 3:  # frames; a silent end is an OSError
            shown += os.read(terminal, 1 << 16)
        os.kill(pid, signal.SIGINT)
        with suppress(OSError):  # how Linux tells that the other side has closed
            while more := os.read(terminal, 1 << 16):
                shown += more
    finally:
        os.close(terminal)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert b"\x1b[?1049h" in shown
    assert shown.rstrip().endswith(b"\x1b[?1049l")  # the screen is as it was


def test_top_says_what_it_lacks(locked: Server) -> None:
    for arguments, expected in (
        ((locked.url, "--once"), "requires an API key"),
        ((locked.url, "--once", "--api-key", "wrong"), "rejects this API key"),
        (("http://127.0.0.1:1", "--once"), "no server at http://127.0.0.1:1"),
        ((locked.url, "--api-key", "a-key"), "standard output is not a terminal"),
    ):
        done = command("top", *arguments)
        assert done.returncode == 1
        assert done.stderr.startswith("error: ")
        assert expected in done.stderr
