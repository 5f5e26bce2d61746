"""CPU cost of the HTTP frontend under saturation, with an engine that computes nothing (`stub_engine.py`).

    python bench/frontend.py [--model smollm2] [--streams 256] [--seconds 6] [--api chat] [--json FILE]
    python bench/frontend.py --source A/src --source B/src --rounds 3      # two checkouts, interleaved
    python bench/frontend.py --frontends 1 --frontends 2 --rounds 3        # processes of one server, interleaved

Three figures of one frontend process, which has half of the cores:

cost     CPU time (user and system, from /proc) per streamed token, at `--streams` streams and one token per stream and
         step of 10 ms
gaps     ITL as clients see it, at 80% of the ceiling that follows from the cost: in ms and in engine steps
burst    600 simultaneous requests with prompts of 512 tokens: TTFT, beside that of the engine alone

With `--frontends` instead, of servers with so many frontend processes, on all cores, beside engine and clients:

cost     CPU time per token at a step of 10 ms, of frontends and control process together, and of the control process
ceiling  tokens per second with an engine that is never the bound: steps of `--step-ms`, one token per stream each; a
         frontend that falls behind sends several tokens in one event. With the gaps that clients see, in steps, and the
         cores that each kind of process takes

With `--replay` the engine sends recorded steps: on many cores it would be the bound otherwise.

Clients are separate processes that read raw sockets and count events. Also printed: the cost of write(2) per token
alone, on the same machine.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
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
BURST, BURST_TOKENS, PREFILL_PER_S = 600, 512, 280_000.0
COST_STEP_MS = 10.0
APIS = {"chat": "/v1/chat/completions", "completions": "/v1/completions", "messages": "/v1/messages"}
WORDS = "the river runs over old stones and under the bridge where people stand and look at the water going by "


class Server:
    def __init__(
        self, source: Path, model: str, step_ms: float, *options: str, pinned: bool = True, replay: bool = False
    ) -> None:
        """`pinned`: half of the cores are its own."""
        cores = sorted(os.sched_getaffinity(0))
        self.cores = set(cores[: (len(cores) + 1) // 2])
        others = ",".join(map(str, other_cores() if pinned else cores))
        env = {
            **os.environ, "PYTHONPATH": os.pathsep.join((str(source), *sys.path)), "STUB_STEP_MS": str(step_ms),
            "STUB_CORES": others, "STUB_PREFILL": str(PREFILL_PER_S), "PENSTOCK_MAX_WAITING": "4096",
            **({"STUB_REPLAY": "1"} if replay else {}),
        }  # fmt: skip
        log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        command = [sys.executable, str(STUB), "serve", model, "--port", "0", *options]
        self.process = subprocess.Popen(command, stderr=log, env=env)
        while not (found := re.search(r"url +http://([\d.]+):(\d+)/v1", Path(log.name).read_text())):
            if self.process.poll() is not None:
                raise SystemExit(f"the server did not start: {Path(log.name).read_text()}")
            time.sleep(0.05)
        self.address = (found[1], int(found[2]))
        if not pinned:
            return
        os.sched_setaffinity(self.process.pid, self.cores)
        for thread in Path(f"/proc/{self.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), self.cores)

    def cpu_s(self) -> float:
        return cpu_s(self.process.pid)

    def children_cpu_s(self, what: bytes = b"penstock.frontends.worker") -> float:
        """Of its child processes whose command line has `what`: its further frontends."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        children = " ".join(task.read_text() for task in tasks).split()
        lines = {int(pid): Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
        return sum(cpu_s(pid) for pid, line in lines.items() if what in line)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def cpu_s(pid: int) -> float:
    """Of all threads of a process, those that have ended too: its CPU-time clock (`clock_getcpuclockid`)."""
    return time.clock_gettime(~pid << 3 | 2)


def other_cores() -> list[int]:
    """The cores for clients and the engine."""
    cores = sorted(os.sched_getaffinity(0))
    return cores[(len(cores) + 1) // 2 :] or cores


class Stream:
    """A request in flight, and the times of its tokens."""

    def __init__(self, address: tuple[str, int], request: bytes) -> None:
        self.socket = socket.create_connection(address)
        self.request = request
        self.sent = self.first = self.last = 0.0
        self.tokens = 0
        self.gaps: list[float] = []
        self.tail = b""

    def read(self, now: float) -> bool:
        """Read available data; False at the end of the stream."""
        data = self.socket.recv(1 << 18)
        count = data.count(b'"content":"') + data.count(b'"text":"')
        if count:
            if self.last:
                self.gaps += [now - self.last] + [0.0] * (count - 1)
            else:
                self.first = now
            self.last = now
            self.tokens += count
        self.tail = (self.tail + data)[-64:]
        if not data and not self.tail.endswith(b"0\r\n\r\n"):
            raise SystemExit(f"a stream broke off: {self.tail!r}")
        return bool(data)


def client(address: tuple[str, int], requests: list[bytes], cores: list[int], barrier: Any, results: Any) -> None:
    os.sched_setaffinity(0, cores)
    selector = selectors.EpollSelector()
    streams = [Stream(address, request) for request in requests]
    barrier.wait()
    for stream in streams:
        stream.sent = time.monotonic()
        stream.socket.sendall(stream.request)
        selector.register(stream.socket, selectors.EVENT_READ, stream)
    left = len(streams)
    while left:
        for key, _ in selector.select():
            if not key.data.read(time.monotonic()):
                selector.unregister(key.fileobj)
                left -= 1
    results.put([(one.sent, one.first, one.last, one.tokens, one.gaps) for one in streams])


def load(
    server: Server, requests: list[bytes], cores: list[int] | None = None, clients: int = 2
) -> tuple[list[Any], float, float]:
    """The streams; CPU seconds of the frontend; wall-clock seconds. `cores`: of the clients, which are processes."""
    cores = other_cores() if cores is None else cores
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(clients + 1), context.Queue()
    workers = [
        context.Process(target=client, args=(server.address, requests[place::clients], cores, barrier, results))
        for place in range(clients)
    ]
    for worker in workers:
        worker.start()
    barrier.wait()
    before, started = server.cpu_s(), time.monotonic()
    seen = [one for _ in workers for one in results.get()]
    spent, elapsed = server.cpu_s() - before, time.monotonic() - started
    for worker in workers:
        worker.join()
    return seen, spent, elapsed


def request(api: str, model: str, place: int, prompt_words: int, tokens: int, key: str | None = None) -> bytes:
    text = f"{place} " + " ".join((WORDS * (prompt_words // 19 + 1)).split()[:prompt_words])
    body: dict[str, Any] = {"model": Path(model).name, "max_tokens": tokens, "stream": True}
    if api == "completions":
        body["prompt"] = text
    else:
        body["messages"] = [{"role": "user", "content": text}]
    if api != "messages":
        body["ignore_eos"] = True
    data = json.dumps(body).encode()
    head = f"POST {APIS[api]} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-type: application/json\r\n"
    head += "" if key is None else f"authorization: Bearer {key}\r\n"
    return f"{head}content-length: {len(data)}\r\n\r\n".encode() + data


def write_us(streams: int, seconds: float = 2.0) -> float:
    """CPU time of the write(2) that a token takes at least: 220 bytes to each of `streams` connections in turn, which
    another process reads, once per step as in the cost phase."""
    listener = socket.create_server(("127.0.0.1", 0))
    reader = multiprocessing.get_context("fork").Process(
        target=read_all, args=(listener.getsockname(), streams, other_cores())
    )
    reader.start()
    sockets = [listener.accept()[0] for _ in range(streams)]
    for one in sockets:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    event, spent, steps = b"x" * 220, 0.0, int(seconds * 1000 / COST_STEP_MS)
    for _ in range(steps):
        before, started = time.process_time(), time.monotonic()
        for one in sockets:
            one.send(event)
        spent += time.process_time() - before
        time.sleep(max(0.0, COST_STEP_MS / 1000 - (time.monotonic() - started)))
    for one in (*sockets, listener):
        one.close()
    reader.join()
    return spent / (steps * streams) * 1e6


def read_all(address: tuple[str, int], streams: int, cores: list[int]) -> None:
    os.sched_setaffinity(0, cores)
    selector = selectors.EpollSelector()
    for _ in range(streams):
        selector.register(socket.create_connection(address), selectors.EVENT_READ)
    left = streams
    while left:
        for key, _ in selector.select():
            if not key.fileobj.recv(1 << 16):  # type: ignore[union-attr]
                selector.unregister(key.fileobj)
                left -= 1


def quantile(values: list[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] if values else float("nan")


def measure(source: Path, options: argparse.Namespace) -> dict[str, float]:
    def requests(tokens: int) -> list[bytes]:
        return [request(options.api, options.model, place, 40, tokens) for place in range(options.streams)]

    result: dict[str, float] = {}
    with Server(source, options.model, COST_STEP_MS) as server:
        load(server, requests(20))
        tokens = int(options.seconds * 1000 / COST_STEP_MS)
        seen, spent, elapsed = load(server, requests(tokens))
        count = options.streams * tokens
        cost = spent / count
        result |= {
            "cpu_us_per_token": cost * 1e6,
            "tokens_per_s": count / elapsed,
            "events_per_token": sum(one[3] for one in seen) / count,
        }
    step_ms = options.streams * cost / 0.8 * 1000
    with Server(source, options.model, step_ms) as server:
        load(server, requests(20))
        tokens = int(options.seconds * 1000 / step_ms)
        seen, spent, elapsed = load(server, requests(tokens))
        gaps = [gap for one in seen for gap in one[4]]
        result |= {
            "step_ms_at_80%": step_ms,
            "tokens_per_s_at_80%": options.streams * tokens / elapsed,
            "cpu_share_at_80%": spent / elapsed,
            "gap_ms_p50": quantile(gaps, 0.5) * 1000,
            "gap_ms_p99": quantile(gaps, 0.99) * 1000,
            "gap_ms_max": max(gaps) * 1000,
            "gap_steps_p99": quantile(gaps, 0.99) * 1000 / step_ms,
        }
    with Server(source, options.model, 5.0) as server:
        load(server, [request(options.api, options.model, place, 480, 4) for place in range(32)])
        burst = [request(options.api, options.model, place, 500, 64) for place in range(BURST)]
        seen, spent, elapsed = load(server, burst)
        begin = min(one[0] for one in seen)
        firsts = [one[1] - begin for one in seen]
        alone = BURST * BURST_TOKENS / PREFILL_PER_S
        result |= {
            "burst_first_s_p50": quantile(firsts, 0.5),
            "burst_first_s_last": max(firsts),
            "burst_engine_alone_s": alone,
            "burst_ratio": max(firsts) / alone,
        }
    return result


def measure_frontends(source: Path, options: argparse.Namespace, count: int) -> dict[str, float]:
    """Of a server with so many frontend processes."""
    cores, flags = sorted(os.sched_getaffinity(0)), ("--frontends", str(count))
    other = {"pinned": False, "replay": options.replay}

    def requests(tokens: int) -> list[bytes]:
        return [request(options.api, options.model, place, 40, tokens) for place in range(options.streams)]

    with Server(source, options.model, COST_STEP_MS, *flags, **other) as server:
        load(server, requests(20), cores)
        tokens = int(options.seconds * 1000 / COST_STEP_MS)
        before = server.children_cpu_s()
        _, control_s, _ = load(server, requests(tokens), cores, options.clients)
        frontends_s = server.children_cpu_s() - before
    total = options.streams * tokens
    with Server(source, options.model, options.step_ms, *flags, **other) as server:
        load(server, requests(20), cores)
        ceiling_tokens = int(options.seconds * 1000 / options.step_ms)
        before, engine_before = server.children_cpu_s(), server.children_cpu_s(b"stub_engine")
        seen, ceiling_control_s, elapsed = load(server, requests(ceiling_tokens), cores, options.clients)
        engine_s = server.children_cpu_s(b"stub_engine") - engine_before
        ceiling_frontends_s = server.children_cpu_s() - before
        begin, end = min(one[0] for one in seen), max(one[2] for one in seen)
        gaps = [gap for one in seen for gap in one[4]]
    return {
        "cpu_us_per_token": (control_s + frontends_s) / total * 1e6,
        "control_us_per_token": (control_s if count > 1 else 0.0) / total * 1e6,
        "offered_tokens_per_s": options.streams / options.step_ms * 1000,
        "ceiling_tokens_per_s": options.streams * ceiling_tokens / (end - begin),
        "ceiling_events_per_token": sum(one[3] for one in seen) / (options.streams * ceiling_tokens),
        "ceiling_gap_steps_p99": quantile(gaps, 0.99) * 1000 / options.step_ms,
        "ceiling_gap_ms_max": max(gaps) * 1000,
        "cores_frontends": ceiling_frontends_s / elapsed,
        "cores_control": ceiling_control_s / elapsed,
        "cores_engine": engine_s / elapsed,
    }


def compare_frontends(source: Path, options: argparse.Namespace) -> None:
    rounds: dict[int, list[dict[str, float]]] = {count: [] for count in options.frontends}
    for _ in range(options.rounds):
        for count, found in rounds.items():
            found.append(measure_frontends(source, options, count))
            print(f"frontends {count}  {found[-1]}", file=sys.stderr)
    medians = {
        count: {name: statistics.median(one[name] for one in found) for name in found[0]}
        for count, found in rounds.items()
    }
    print(json.dumps(medians, indent=2))
    if options.json:
        options.json.write_text(json.dumps(medians, indent=2) + "\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--streams", type=int, default=256)
    arguments.add_argument("--seconds", type=float, default=6.0)
    arguments.add_argument("--rounds", type=int, default=1)
    arguments.add_argument("--api", choices=APIS, default="chat")
    arguments.add_argument("--source", type=Path, action="append", help="src/ of a checkout; default: this one")
    arguments.add_argument("--frontends", type=int, action="append", help="frontend processes; several are compared")
    arguments.add_argument("--clients", type=int, default=2, help="processes, with --frontends")
    arguments.add_argument("--step-ms", type=float, default=1.0, help="of the ceiling, with --frontends")
    arguments.add_argument("--replay", action="store_true", help="the engine sends recorded steps")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    sources = options.source or [Path(__file__).parent.parent / "src"]
    if options.frontends:
        compare_frontends(sources[0], options)
        return
    results: dict[str, list[dict[str, float]]] = {str(source): [] for source in sources}
    for number in range(options.rounds):
        for source in sources:
            found = measure(source, options)
            results[str(source)].append(found)
            print(f"round {number + 1}  {source}", file=sys.stderr)
            print("  " + "  ".join(f"{name} {value:.4g}" for name, value in found.items()), file=sys.stderr)
    medians = {
        source: {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        for source, rounds in results.items()
    }
    medians["limit"] = {"write_us_per_token": write_us(options.streams)}
    print(json.dumps(medians, indent=2))
    if options.json:
        options.json.write_text(json.dumps(medians, indent=2) + "\n")


if __name__ == "__main__":
    main()
