"""How fast Penstock starts, and how much memory an idle server takes. Each figure is the median of fresh processes.

    python bench/start.py [--model smollm2] [--rounds 7] [--json bench/results/start.json]

Rows: `penstock --help`; `penstock run`, from its start to the first byte of its answer; `penstock serve`, from its
start to /health, to /ready and to the first streamed token of a request that polls until then; resident and
proportional memory of the idle server, both processes. llama.cpp, which has no such processes, is in bench/cpu.py. The
model must have been pulled; the first round, which may have to read it from disk, does not count.
"""

import argparse
import http.client
import json
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import bytecode

PENSTOCK = str(Path(sys.executable).with_name("penstock"))
PROMPT = "What is the capital of France?"
POLL_S = 0.002
PATIENCE_S = 120.0

Figures = dict[str, float]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--rounds", type=int, default=7)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    bytecode.compile_all()
    rounds = [measure(options.model) for _ in range(1 + options.rounds)][1:]
    medians = {name: round(statistics.median(one[name] for one in rounds), 3) for name in rounds[0]}
    for name, figure in medians.items():
        print(
            f"{name:48} {figure:8}  ({min(one[name] for one in rounds):.3f} .. {max(one[name] for one in rounds):.3f})"
        )
    if options.json:
        options.json.write_text(
            json.dumps({"model": options.model, "rounds": options.rounds, **medians}, indent=2) + "\n"
        )


def measure(model: str) -> Figures:
    return {
        "penstock --help: s": timed([PENSTOCK, "--help"]),
        "penstock run, to the first byte: s": timed([PENSTOCK, "run", PROMPT, "--model", model, "--max-tokens", "8"]),
        **serve(model),
    }


def timed(command: list[str]) -> float:
    """From the start of the process to the first byte of its output."""
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        assert process.stdout.read(1)
        seconds = time.perf_counter() - started
        process.stdout.read()
    assert process.returncode == 0
    return seconds


def serve(model: str) -> Figures:
    started = time.perf_counter()
    with server(model) as (process, port):
        figures = {}
        for path in ("/health", "/ready"):
            until_ok(port, "GET", path, started)
            figures[f"penstock serve, to {path}: s"] = time.perf_counter() - started
        figures["idle memory, resident: MB"], figures["idle memory, proportional: MB"] = memory_mb(process)
        until_ok(port, "POST", "/v1/chat/completions", started, body(model))
        figures["penstock serve, to the first token: s"] = time.perf_counter() - started
        return figures


@contextmanager
def server(model: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [PENSTOCK, "serve", model, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            yield process, port
        finally:
            process.terminate()


def until_ok(port: int, method: str, path: str, started: float, body: str | None = None) -> None:
    """Until it is 200 and its first byte has come."""
    while time.perf_counter() < started + PATIENCE_S:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
        try:
            connection.request(method, path, body, {"content-type": "application/json"})
            response = connection.getresponse()
            if response.status == 200 and response.read(1):
                return
        except OSError:
            pass
        finally:
            connection.close()
        time.sleep(POLL_S)
    raise TimeoutError(path)


def body(model: str) -> str:
    message = {"role": "user", "content": PROMPT}
    return json.dumps({"model": model, "messages": [message], "max_tokens": 8, "stream": True})


def memory_mb(process: subprocess.Popen[bytes]) -> tuple[float, float]:
    """Resident and proportional memory of the server's processes."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    totals = {"Rss": 0, "Pss": 0}
    for pid in (process.pid, *children):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            name, _, size = line.partition(":")
            if name in totals:
                totals[name] += int(size.split()[0])
    return totals["Rss"] / 1024, totals["Pss"] / 1024


if __name__ == "__main__":
    main()
