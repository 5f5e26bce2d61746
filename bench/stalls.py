"""How long one request can stall others: hostile requests beside a running stream.

    python bench/stalls.py [--only "14 kB"] [--source A/src --source B/src] [--json FILE]

For each request: the longest gap between two tokens of a stream (an engine that computes nothing emits one every 5 ms)
and the slowest /health ping meanwhile, in milliseconds; the request's time and status, and the frontend's resident
memory afterwards. The first line is an idle server: the machine's noise. Lines that begin with "first:" have a server
of their own, which has seen nothing but the stream before: what it imports or builds with its first use counts there.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

STUB = Path(__file__).with_name("stub_engine.py")
TEXT = "the river runs over old stones and under the bridge "


def hostile() -> dict[str, tuple[str, Any]]:
    megabytes = TEXT * (15_000_000 // len(TEXT))
    turn = {"role": "user", "content": "word " * 10}
    return {
        "idle": ("/health", None),
        "15 MB prompt": ("/v1/completions", {"prompt": megabytes}),
        "15 MB message": ("/v1/chat/completions", {"messages": [{"role": "user", "content": megabytes}]}),
        "3 M token ids": ("/v1/completions", {"prompt": list(range(1000)) * 3000}),
        "1 M token ids": ("/v1/completions", {"prompt": list(range(1000)) * 1000}),
        "300 lists of 7,500 ids": ("/v1/completions", {"prompt": [list(range(1, 7501))] * 300}),
        "2,048 embeddings of 7 kB": ("/v1/embeddings", {"input": [TEXT * 140] * 2048}),
        "20,000 messages": ("/v1/chat/completions", {"messages": [turn, {**turn, "role": "assistant"}] * 10_000}),
        "4,000 short prompts": ("/v1/completions", {"prompt": ["a"] * 2048, "n": 2}),
        "15 MB /tokenize": ("/tokenize", {"prompt": megabytes}),
        "600 kB /tokenize": ("/tokenize", {"prompt": megabytes[:600_000]}),
        "15 MB count_tokens": ("/v1/messages/count_tokens", {"messages": [{"role": "user", "content": megabytes}]}),
        "15 MB /plan/budget": ("/plan/budget", {"documents": [megabytes]}),
        "15 MB explain": ("/observe/cache/explain", {"prompt": megabytes}),
        "15 MB lab": ("/observe/lab", {"prompt": megabytes}),
        "nested JSON": ("/v1/chat/completions", {"messages": [[["x" * 200], [1.5] * 10]] * 40_000}),
        "numbers of 4,300 digits": ("/v1/chat/completions", {"messages": [int("9" * 4300)] * 3700}),
        "1 M ids /detokenize": ("/detokenize", {"tokens": list(range(1000)) * 1000}),
        **hostile_documents(megabytes, turn),
    }


def hostile_documents(megabytes: str, turn: dict[str, str]) -> dict[str, tuple[str, Any]]:
    """For context assembly and reranking."""
    chat, talk = "/v1/chat/completions", [turn, {**turn, "role": "assistant"}] * 10_000
    asked: dict[str, Any] = {"messages": [{"role": "user", "content": "Which river?"}], "context": {}, "max_tokens": 5}
    whole = [megabytes[begin : begin + 14_000] for begin in range(0, 14_000_000, 14_000)]
    pieces = [one.replace("bridge ", "bridge. ") for one in whole]
    return {
        "15 MB document": (chat, {**asked, "documents": [megabytes]}),
        "15 MB document of one word": (chat, {**asked, "documents": ["a" * 15_000_000]}),
        "15 MB document of special tokens": (chat, {**asked, "documents": ["<|im_end|>" * 1_500_000]}),
        "1,000 documents of 14 kB": (chat, {**asked, "documents": pieces}),
        "1,000 documents of one sentence": (chat, {**asked, "documents": whole}),
        "10,000 documents": (chat, {**asked, "documents": ["a"] * 10_000}),
        "20,000 messages, assembled": (chat, {**asked, "messages": [*talk, turn]}),
        "15 MB message, assembled": (chat, {**asked, "messages": [{"role": "user", "content": megabytes}]}),
        "15 MB of history, assembled": (chat, {**asked, "messages": [{**turn, "content": megabytes}, *talk[1:], turn]}),
        "1,000 documents of 14 kB, reranked": ("/v1/rerank", {"query": "Which river?", "documents": pieces}),
        "15 MB query, reranked": ("/v1/rerank", {"query": megabytes, "documents": ["a"]}),
        "15 MB of documents, planned": ("/plan/budget", {"user": "a", "documents": pieces, "assembly": {}}),
    }


def first_uses() -> dict[str, tuple[str, Any]]:
    """Requests that a server may have to import or build something for."""
    chat, turn = "/v1/chat/completions", {"role": "user", "content": "Which river?"}
    asked: dict[str, Any] = {"messages": [turn], "max_tokens": 5}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    requests = hostile()
    large = ("1,000 documents of 14 kB", "15 MB document", "1,000 documents of 14 kB, reranked")
    return {
        **{f"first: {name}": requests[name] for name in large},
        "first: two documents": (chat, {**asked, "context": {}, "documents": ["A river runs.", "A bridge stands."]}),
        "first: JSON schema": (chat, {**asked, "response_format": schema}),
        "first: response": ("/v1/responses", {"input": "a", "max_output_tokens": 5}),
        "first: message": ("/v1/messages", asked),
        "first: Ollama": ("/api/chat", {"model": "smollm2", "messages": [turn]}),
        "first: embedding": ("/v1/embeddings", {"input": "a"}),
        "first: /openapi.json": ("/openapi.json", None),
        "first: /observe/facts": ("/observe/facts", None),
        "first: /plan": ("/plan", {}),
        "first: /v1/files": ("/v1/files", None),
    }


def start(source: Path, log: Path) -> tuple[subprocess.Popen[bytes], tuple[str, int]]:
    env = {**os.environ, "PYTHONPATH": str(source), "STUB_STEP_MS": "5"}
    command = [sys.executable, str(STUB), "serve", "smollm2", "--port", "0"]
    process = subprocess.Popen(command, stderr=log.open("wb"), env=env)
    while not (found := re.search(r"url +http://([\d.]+):(\d+)/v1", log.read_text())):
        if process.poll() is not None:
            raise SystemExit(f"the server did not start: {log.read_text()}")
        time.sleep(0.05)
    return process, (found[1], int(found[2]))


def post(path: str, body: Any) -> bytes:
    named = {"model": "smollm2"} if path.startswith(("/v1", "/tokenize", "/detokenize")) else {}
    data = b"" if body is None else json.dumps({**named, **body}).encode()
    verb = "GET" if body is None else "POST"
    head = f"{verb} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
    return f"{head}connection: close\r\ncontent-length: {len(data)}\r\n\r\n".encode() + data


class Witness(threading.Thread):
    """Reads a stream, or sends pings, and keeps the longest gap."""

    def __init__(self, address: tuple[str, int], request: bytes, *, pings: bool) -> None:
        super().__init__(daemon=True)
        self.address, self.request, self.pings = address, request, pings
        self.longest_s = 0.0
        self.over = False

    def run(self) -> None:
        while not self.over:
            with socket.create_connection(self.address) as connection:
                last = time.monotonic()
                connection.sendall(self.request)
                while not self.over and connection.recv(1 << 16):
                    now = time.monotonic()
                    self.longest_s, last = max(self.longest_s, now - last), now
            if self.pings:
                time.sleep(0.005)


def measure(address: tuple[str, int], request: bytes, pid: int) -> dict[str, float]:
    talk = {"messages": [{"role": "user", "content": TEXT * 4}], "max_tokens": 7000, "stream": True, "ignore_eos": True}
    witnesses = [
        Witness(address, post("/v1/chat/completions", talk), pings=False),
        Witness(address, post("/health", None), pings=True),
    ]
    for witness in witnesses:
        witness.start()
    time.sleep(0.5)
    for witness in witnesses:
        witness.longest_s = 0.0
    begun, answer = time.monotonic(), b""
    with socket.create_connection(address) as connection:
        with contextlib.suppress(ConnectionError):  # rejected before it was sent in full
            connection.sendall(request)
        while data := connection.recv(1 << 16):
            answer = answer or data
    took = time.monotonic() - begun
    time.sleep(0.5)
    for witness in witnesses:
        witness.over = True
    for witness in witnesses:
        witness.join()
    return {
        "stream_gap_ms": witnesses[0].longest_s * 1000,
        "ping_ms": witnesses[1].longest_s * 1000,
        "took_s": took,
        "status": int(answer.split(b" ")[1]) if answer else 0,
        "rss_mb": int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6,
    }


def measure_server(source: Path, requests: dict[str, tuple[str, Any]]) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        process, address = start(source, Path(folder) / "log")
        try:
            for name, (path, body) in requests.items():
                found[name] = one = measure(address, post(path, body), process.pid)
                told = "  ".join(f"{field} {value:7.1f}" for field, value in one.items())
                print(f"  {name:41} {told}", flush=True)
        finally:
            process.terminate()
            process.wait()
    return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--source", type=Path, action="append", help="src/ of a checkout; default: this one")
    arguments.add_argument("--only", help="part of a request's name")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    servers = [hostile(), *({name: request} for name, request in first_uses().items())]
    for source in options.source or [Path(__file__).parent.parent / "src"]:
        found = results[str(source)] = {}
        print(source)
        for requests in servers:
            asked = {name: one for name, one in requests.items() if options.only is None or options.only in name}
            if asked:
                found |= measure_server(source, asked)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
