"""Do frontend and engine starve each other on shared cores? A real server streams to 1 and to 16 clients, alternating
with the engine alone on the same work.

    python bench/cpu_share.py [--model smollm2] [--rounds 3] [--threads 2] [--json bench/results/cpu-share.json]

Prints, for each number of streams: tokens per second through HTTP and without, from the first request to the last
token, prompts included; CPU time of frontend, engine and client, read from /proc; how long a cheap request (/health)
takes while all streams run, and the TTFT of one more request; and the same for an idle server.

The client runs on the same cores: one thread with plain sockets and minimal parsing. Its CPU time is printed, since a
remote client would leave it to the engine.
"""

import argparse
import json
import os
import re
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cpu_child import Child
from penstock.settings import load
from penstock.store.resolve import resolve

PROMPT = 64
OUTPUT = {1: 512, 16: 256}  # tokens per stream, by number of streams
PROBE_EVERY_S = 0.05
PATIENCE_S = 60.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    (weights,) = resolve(load({"model": options.model}).model.model).weights
    alone = Child("cpu_penstock.py", weights, options.threads)
    server = Server(options.model, options.threads)
    try:
        server.load(2, 16)
        server.quiet_probes(5)
        results = {"idle server": server.quiet_probes(40)}
        for streams, output in OUTPUT.items():
            rounds = [one_round(alone, server, streams, output) for _ in range(options.rounds)]
            name = f"{streams} stream{'s' * (streams > 1)}"
            results[name] = {key: round(statistics.median(one[key] for one in rounds), 3) for key in rounds[0]}
    finally:
        alone.close()
        server.close()
    for name, figures in results.items():
        print(name)
        for key, value in figures.items():
            print(f"    {key:44} {value:>10}")
    if options.json:
        options.json.write_text(json.dumps({"threads": options.threads, "rows": results}, indent=2) + "\n")


def one_round(alone: Child, server: "Server", streams: int, output: int) -> dict[str, float]:
    without = alone.ask("together", prompt=PROMPT, streams=streams, output=output)
    figures = server.load(streams, output)
    return {"tok/s, engine alone": without, **figures, "ratio": figures["tok/s, through HTTP"] / without}


class Server:
    def __init__(self, model: str, threads: int) -> None:
        penstock = str(Path(sys.executable).with_name("penstock"))
        command = [penstock, "serve", model, "--port", "0", "--threads", str(threads), "--no-prefix-caching"]
        self._log = tempfile.NamedTemporaryFile("r")  # noqa: SIM115 - an unread pipe fills up
        self._process = subprocess.Popen(command, stderr=self._log.fileno())
        while not (found := re.search(r"url +(http://\S+)/v1", Path(self._log.name).read_text())):
            if self._process.poll() is not None:
                raise SystemExit(f"the server did not start: {Path(self._log.name).read_text()[-2000:]}")
            time.sleep(0.1)
        parts = urlsplit(found[1])
        assert parts.hostname is not None and parts.port is not None  # noqa: PT018
        self._address = parts.hostname, parts.port
        self._model = model

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def load(self, streams: int, output: int) -> dict[str, float]:
        """All streams at once, and then, while they run: probes, and one more request."""
        clients = [Stream(self._address, self._body(number, output)) for number in range(streams)]
        newcomer = Stream(self._address, self._body(streams, 4))
        probe = Probe(self._address)
        before, started = self._cpu_s(), time.perf_counter()
        with selectors.DefaultSelector() as selector:
            for client in clients:
                client.send(selector)
            probe_at, joins_at = started + 2 * PROBE_EVERY_S, started + 0.5
            while not all(client.ended for client in clients):
                for key, _ in selector.select(PROBE_EVERY_S):
                    key.data.receive(selector)
                now = time.perf_counter()
                if now > started + PATIENCE_S:
                    raise SystemExit(f"no end after {PATIENCE_S} s")
                if now >= probe_at and all(client.first for client in clients):
                    probe_at = now + PROBE_EVERY_S
                    probe.send(selector)
                if now >= joins_at and not newcomer.sent and all(client.first for client in clients):
                    newcomer.send(selector)
            elapsed = time.perf_counter() - started
            spent = {name: after - before[name] for name, after in self._cpu_s().items()}
            while newcomer.sent and not newcomer.ended:
                for key, _ in selector.select():
                    key.data.receive(selector)
        probe.close()
        tokens = sum(client.tokens() for client in clients)
        assert tokens == streams * output, f"{tokens} of {streams * output} tokens"
        return {
            "tok/s, through HTTP": tokens / elapsed,
            "first byte, median: ms": 1000 * statistics.median(client.first - client.sent for client in clients),
            "first byte of one more: ms": 1000 * (newcomer.first - newcomer.sent) if newcomer.sent else 0.0,
            **probe.figures(),
            **{f"CPU of {name}: share of one core": seconds / elapsed for name, seconds in spent.items()},
            "CPU of frontend per token: us": 1e6 * spent["frontend"] / tokens,
        }

    def quiet_probes(self, count: int) -> dict[str, float]:
        probe = Probe(self._address)
        with selectors.DefaultSelector() as selector:
            for _ in range(count):
                time.sleep(PROBE_EVERY_S)
                probe.send(selector)
                while probe.waits:
                    selector.select()
                    probe.receive(selector)
        probe.close()
        return {key: round(value, 3) for key, value in probe.figures().items()}

    def _body(self, number: int, output: int) -> dict[str, Any]:
        """Streams of different tokens."""
        prompt = [1000 + (97 * number + 31 * place) % 40000 for place in range(PROMPT)]
        sampling = {"temperature": 0, "max_tokens": output, "ignore_eos": True}
        streaming = {"stream": True, "stream_options": {"include_usage": True}}
        return {"model": self._model, "prompt": prompt, **sampling, **streaming}

    def _cpu_s(self) -> dict[str, float]:
        used = resource.getrusage(resource.RUSAGE_SELF)
        found = {"frontend": cpu_s(self._process.pid), "engine": 0.0, "client": used.ru_utime + used.ru_stime}
        for task in Path(f"/proc/{self._process.pid}/task").glob("*/children"):
            for pid in task.read_text().split():
                if b"penstock.engine.worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    found["engine"] += cpu_s(int(pid))
        return found


@dataclass
class Stream:
    """One streaming request on its own connection."""

    address: tuple[str, int]
    body: dict[str, Any]
    sent: float = 0.0
    first: float = 0.0  # time of the first byte of the response
    ended: float = 0.0
    _tail: bytes = b""

    def send(self, selector: selectors.BaseSelector) -> None:
        body = json.dumps(self.body).encode()
        head = (
            f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        )
        connection = socket.create_connection(self.address)
        selector.register(connection, selectors.EVENT_READ, self)
        self._connection = connection
        self.sent = time.perf_counter()
        connection.sendall(f"{head}\r\n\r\n".encode() + body)

    def receive(self, selector: selectors.BaseSelector) -> None:
        data = self._connection.recv(1 << 16)
        now = time.perf_counter()
        self.first = self.first or now
        self._tail = (self._tail + data)[-2000:]
        if not data or b"[DONE]" in self._tail:
            self.ended = now
            selector.unregister(self._connection)
            self._connection.close()

    def tokens(self) -> int:
        found = re.search(rb'"completion_tokens": *(\d+)', self._tail)
        return int(found[1]) if found else 0


@dataclass
class Probe:
    """Cheap requests on a keep-alive connection."""

    address: tuple[str, int]
    took: list[float] = field(default_factory=list)
    _sent: float = 0.0  # 0: none in flight
    _answer: bytes = b""

    def __post_init__(self) -> None:
        self._connection = socket.create_connection(self.address)

    @property
    def waits(self) -> bool:
        return self._sent != 0.0

    def send(self, selector: selectors.BaseSelector) -> None:
        if self.waits:
            return
        if self._connection not in selector.get_map():
            selector.register(self._connection, selectors.EVENT_READ, self)
        self._sent = time.perf_counter()
        self._connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")

    def receive(self, selector: selectors.BaseSelector) -> None:
        self._answer += self._connection.recv(1 << 16)
        head, gap, body = self._answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)
        if not gap or (length and len(body) < int(length[1])):
            return
        assert b" 200 " in head
        self._answer = b""
        self.took.append(time.perf_counter() - self._sent)
        self._sent = 0.0

    def close(self) -> None:
        self._connection.close()

    def figures(self) -> dict[str, float]:
        took = sorted(self.took) or [0.0]
        return {
            "/health, median: ms": 1000 * statistics.median(took),
            "/health, slowest of twenty: ms": 1000 * took[int(0.95 * (len(took) - 1))],
        }


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


if __name__ == "__main__":
    main()
