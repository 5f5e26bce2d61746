"""What a router adds to the time to the first token, beside LiteLLM's proxy in front of the same server.

    python bench/gateway.py [--model smollm2] [--requests 200] [--rounds 5] [--litellm VENV] [--json FILE]

All engines are stubs that compute nothing (`stub_engine.py`), on the same cores. Measured in turns of a few requests,
one at a time (and `--streams` at once), so that what else the machine does meets all ways alike; `added` is the median
difference between a turn and the direct one of the same round. CPU time is that of the process with the HTTP server:

direct        a server with one replica: nothing to decide
first         four replicas, of which the first is always taken: snapshot, policy and record for each request
replicas      four replicas by prefix: block keys as well, and requests go to all four engine processes
upstream      a second Penstock, which has the first as its upstream
litellm       LiteLLM's proxy (an own virtual environment, no database), which has the first as its upstream

`first` less `direct` is what routing adds, `replicas` has also the cost of engine processes that were not just running.
`upstream` and `litellm` add a hop: another request and another stream to parse and write. LiteLLM's proxy does less:
it does not check requests strictly or record their stages, and it was given no keys, budgets or callbacks. What keys,
limits and the ledger add is in `tenants.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STUB = Path(__file__).with_name("stub_engine.py")
STEP_MS = 1.0
WORDS = "the river runs over old stones and under the bridge where people stand and look at the water going by "
REPLICAS = 4
WARM, TURN = 3, 8  # requests of a turn that are not counted, and those that are


class Server:
    """A process that listens; `address` once it does."""

    def __init__(self, command: list[str], env: dict[str, str], pattern: str, wait_s: float = 120.0) -> None:
        self.log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, env={**os.environ, **env})
        until = time.monotonic() + wait_s
        while not (found := re.search(pattern, Path(self.log.name).read_text())):
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{command} did not start: {Path(self.log.name).read_text()[-3000:]}")
            time.sleep(0.05)
        self.address = (found[1], int(found[2]))
        self.key = "none"

    def cpu_s(self) -> float:
        """Of the process that has the HTTP server."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def penstock(config: str, folder: Path, name: str) -> Server:
    file = folder / f"{name}.toml"
    file.write_text(config)
    env = {"STUB_STEP_MS": str(STEP_MS), "STUB_PREFILL": "10000000"}
    command = [sys.executable, str(STUB), "serve", "--config", str(file), "--port", "0"]
    return Server(command, env, r"url +http://([\d.]+):(\d+)/v1")


def litellm(venv: Path, upstream: tuple[str, int], model: str, folder: Path) -> Server:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    parameters = {"model": f"openai/{model}", "api_base": f"http://{upstream[0]}:{upstream[1]}/v1", "api_key": "none"}
    file = folder / "litellm.yaml"
    file.write_text(json.dumps({"model_list": [{"model_name": model, "litellm_params": parameters}]}))
    command = [str(venv / "bin" / "litellm"), "--config", str(file), "--host", "127.0.0.1", "--port", str(port)]
    env = {"PATH": f"{venv / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": "", "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    env["LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY"] = "true"
    return Server(command, env, r"running on http://([\d.]+):(\d+)")


def body(model: str, number: int, words: int, tokens: int) -> bytes:
    text = f"{number} " + " ".join((WORDS * (words // 19 + 1)).split()[:words])
    content = {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": tokens, "stream": True}
    return json.dumps(content).encode()


def http_request(payload: bytes, key: str) -> bytes:
    headers = {"host": "localhost", "content-type": "application/json", "authorization": f"Bearer {key}"}
    lines = [f"{name}: {value}" for name, value in {**headers, "content-length": str(len(payload))}.items()]
    return "\r\n".join(["POST /v1/chat/completions HTTP/1.1", *lines, "", ""]).encode() + payload


class Connection:
    """Keeps one connection, like any client in a loop."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.data = b""
        self.sent = self.first = 0.0

    def send(self, request: bytes) -> None:
        self.data, self.first = b"", 0.0
        self.sent = time.perf_counter()
        self.socket.sendall(request)

    def read(self) -> bool:
        """True at the end of the answer."""
        piece = self.socket.recv(1 << 16)
        now = time.perf_counter()
        if not piece:
            raise SystemExit(f"the connection was closed: {self.data[-300:]!r}")
        self.data += piece
        if not self.first and re.search(rb'"content": ?"[^"]', self.data):
            self.first = now
        if self.data.endswith(b"0\r\n\r\n"):
            if not self.first:
                raise SystemExit(f"no output: {self.data[-500:]!r}")
            return True
        return False


def measure(server: Server, requests: int, streams: int, options: argparse.Namespace) -> list[float]:
    """Seconds to the first token of each request, with `streams` at once."""

    def make_request(number: int) -> bytes:
        return http_request(body("m", number, options.words, options.tokens), server.key)

    selector = selectors.DefaultSelector()
    connections = [Connection(server.address) for _ in range(streams)]
    times: list[float] = []
    started = 0
    for connection in connections:
        selector.register(connection.socket, selectors.EVENT_READ, connection)
        connection.send(make_request(started))
        started += 1
    while len(times) < requests:
        for key, _ in selector.select():
            connection = key.data
            if connection.read():
                times.append(connection.first - connection.sent)
                if started < requests:
                    connection.send(make_request(started))
                    started += 1
    for connection in connections:
        connection.socket.close()
    selector.close()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--words", type=int, default=400, help="of each prompt")
    parser.add_argument("--tokens", type=int, default=4, help="of each answer")
    parser.add_argument("--litellm", type=Path, help="a virtual environment that has litellm[proxy]")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        local = f'[[models]]\nname = "m"\nmodel = "{options.model}"\n'
        servers = {"direct": penstock(local, folder, "direct")}
        try:
            start_routers(servers, local, folder, options)
            results = run(servers, options)
        finally:
            for server in servers.values():
                server.close()
    report(results)
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


def start_routers(servers: dict[str, Server], local: str, folder: Path, options: argparse.Namespace) -> None:
    several = f"{local}replicas = {REPLICAS}\n"
    servers["first"] = penstock(f'[routing]\nrouting_policy = "name"\n{several}', folder, "first")
    servers["replicas"] = penstock(several, folder, "replicas")
    host, port = servers["direct"].address
    remote = f'[[models]]\nname = "m"\nupstream = "http://{host}:{port}/v1"\n'
    servers["upstream"] = penstock(remote, folder, "upstream")
    if options.litellm is not None:
        servers["litellm"] = litellm(options.litellm, servers["direct"].address, "m", folder)


def run(servers: dict[str, Server], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    for server in servers.values():  # connections, imports, caches
        measure(server, 32, 4, options)
    results: dict[str, dict[str, Any]] = {}
    for streams, count in ((1, TURN), (options.streams, 2 * options.streams)):
        times: dict[str, list[float]] = {name: [] for name in servers}
        medians: dict[str, list[float]] = {name: [] for name in servers}  # of each turn
        spent = dict.fromkeys(servers, 0.0)
        for _ in range(options.rounds * options.requests // count):
            for name, server in servers.items():
                # A server that has not just worked is slower at first: caches of the CPU, not its router.
                before = server.cpu_s()
                turn = measure(server, WARM + count, streams, options)[WARM:]
                spent[name] += server.cpu_s() - before
                times[name] += turn
                medians[name].append(statistics.median(turn))
        for name, values in times.items():
            values.sort()
            added = [one - base for one, base in zip(medians[name], medians["direct"], strict=True)]
            results[f"{name} {streams}"] = {
                "p10_ms": values[len(values) // 10] * 1e3,
                "p50_ms": statistics.median(values) * 1e3,
                "p95_ms": values[int(0.95 * len(values))] * 1e3,
                "added_ms": statistics.median(added) * 1e3,  # of turns that follow each other
                "cpu_ms": spent[name] * 1e3 * count / (WARM + count) / len(values),  # per request, of the frontend
                "cpu_ratio": spent[name] / spent["direct"],
            }
    return results


def report(results: dict[str, dict[str, Any]]) -> None:
    print(f"{'way, streams':16} TTFT p10      p50      p95 ms   added, median ms   CPU ms of the frontend   ratio")
    for name, row in results.items():
        print(
            f"{name:16} {row['p10_ms']:8.2f} {row['p50_ms']:8.2f} {row['p95_ms']:8.2f} {row['added_ms']:18.2f}"
            f" {row['cpu_ms']:24.2f} {row['cpu_ratio']:7.3f}"
        )


if __name__ == "__main__":
    main()
