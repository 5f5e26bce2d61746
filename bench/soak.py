"""Does the frontend's memory level off? A long, steady, mixed load with an engine that computes nothing.

    python bench/soak.py [--minutes 60] [--rate 20] [--step-ms 20] [--tenants 20] [--fill 20000] [--json FILE]

With `--tenants`, the server has keys, limits and a ledger in a SQLite file. Each tenant has a key without limits and
one that is often rejected; an operator looks at limits and usage, and creates and revokes keys.

With `--fill`, that many short requests come first, as fast as they are answered: bounded stores are full then, or after
some minutes (the journal's steps), and what grows later is no store that fills up. 20,000 fill the largest.

Prints one line per minute: resident memory of the frontend, the number of Python objects, and the fill of bounded
stores (the journal's requests, samples and steps, the tokenizer's texts, stored responses, points of the charts, the
meters of limits), and the keys in memory, which are those of the database. At the end: the types that grew most in the
second half.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

STUB = Path(__file__).with_name("stub_engine.py")
WATCHED = (
    "Journal.done", "Journal.first_tokens", "StepRing._steps", "Tokenizer._bytes", "LocalLimiter._meters",
    "History.points", "ResponseStore", "StoredKeys",
)  # fmt: skip
ADMIN = "soak-admin-key"
FILLING = 32  # requests at once that fill the stores
OPERATOR_S = 10.0  # between two looks of the operator
WORDS = ("river", "stone", "bridge", "water", "people", "tree", "light", "cloud", "wind", "road", "house", "paper")


def start(folder: Path, options: argparse.Namespace) -> tuple[subprocess.Popen[bytes], str]:
    env = {**os.environ, "STUB_COUNTS": str(folder / "counts"), "STUB_STEP_MS": str(options.step_ms)}
    command = [sys.executable, str(STUB), "serve", options.model, "--port", "0", "--data-dir", str(folder)]
    if options.tenants:
        command += ["--keys", "--admin-key", ADMIN]
    log = folder / "log"
    process = subprocess.Popen(command, stderr=log.open("wb"), env=env)
    while not (found := re.search(r"url +(http://\S+)/v1", log.read_text())):
        if process.poll() is not None:
            raise SystemExit(f"the server did not start: {log.read_text()}")
        time.sleep(0.1)
    return process, found[1]


def rss_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


async def create_keys(client: httpx.AsyncClient, tenants: int) -> list[str]:
    limits: tuple[dict[str, int], ...] = ({}, {"requests_per_minute": 6, "tokens_per_minute": 2000})
    bodies = [{"tenant": f"tenant-{number}", **one} for number in range(tenants) for one in limits]
    return [(await admin(client, "POST", "/admin/keys", body))["key"] for body in bodies]


async def admin(client: httpx.AsyncClient, method: str, path: str, body: Any = None) -> Any:
    response = await client.request(method, path, json=body, headers=bearer(ADMIN))
    response.raise_for_status()
    return response.json()


async def operate(client: httpx.AsyncClient) -> None:
    """What the pages of the UI ask for, and keys that come and go."""
    while True:
        await asyncio.sleep(OPERATOR_S)
        for path in ("/admin/limits", "/admin/keys?tenant=tenant-0", "/usage?group_by=day,tenant,model", "/metrics"):
            with contextlib.suppress(httpx.TransportError):
                await client.get(path, headers=bearer(ADMIN))
        made = await admin(client, "POST", "/admin/keys", {"tenant": "tenant-0"})
        await admin(client, "DELETE", f"/admin/keys/{made['id']}")


def bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"authorization": f"Bearer {key}"}


async def one_request(client: httpx.AsyncClient, model: str, key: str | None) -> None:
    """Of every kind: streams of three APIs, whole answers, mistakes, clients that hang up."""
    text = " ".join(random.choices(WORDS, k=random.choice((5, 50, 400)))) + f" {random.random()}"
    messages = [{"role": "user", "content": text}]
    tokens = random.choice((4, 32, 128))
    kind = random.choice(("chat", "chat", "whole", "completion", "message", "response", "wrong", "gone", "tokenize"))
    match kind:
        case "completion":
            path, body = "/v1/completions", {"prompt": text, "max_tokens": tokens, "stream": True, "logprobs": None}
        case "message":
            path, body = "/v1/messages", {"messages": messages, "max_tokens": tokens, "stream": True}
        case "response":
            path, body = "/v1/responses", {"input": text, "max_output_tokens": tokens}
        case "wrong":
            path, body = "/v1/chat/completions", {"messages": messages, "temperature": "hot"}
        case "tokenize":
            path, body = "/tokenize", {"prompt": text * 20}
        case _:
            path, body = "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "stream": kind != "whole"}
    with contextlib.suppress(httpx.TransportError):  # a keep-alive connection may close as it is reused
        async with client.stream("POST", path, json={"model": model, **body}, headers=bearer(key)) as response:
            async for _ in response.aiter_bytes():
                if kind == "gone":
                    return


async def fill(client: httpx.AsyncClient, model: str, keys: Sequence[str | None], count: int) -> None:
    """Short answers, a quarter of them stored."""
    left = iter(range(count))

    async def send() -> None:
        for number in left:
            text = " ".join(random.choices(WORDS, k=50)) + f" {number}"
            path, body = "/v1/completions", {"prompt": text, "max_tokens": 2}
            if number % 4 == 0:
                path, body = "/v1/responses", {"input": text, "max_output_tokens": 64}
            await client.post(path, json={"model": model, **body}, headers=bearer(random.choice(keys)))

    await asyncio.gather(*(send() for _ in range(FILLING)))


async def load(url: str, options: argparse.Namespace, until: float) -> None:
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        keys: list[str | None] = [*await create_keys(client, options.tenants)] or [None]
        if options.fill:
            await fill(client, options.model, keys[::2], options.fill)  # of keys without limits
        operator = asyncio.create_task(operate(client)) if options.tenants else None
        running: set[asyncio.Task[None]] = set()
        while time.monotonic() < until:
            task = asyncio.create_task(one_request(client, options.model, random.choice(keys)))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(random.expovariate(options.rate))
        await asyncio.gather(*running)
        if operator is not None:
            operator.cancel()
            await asyncio.gather(operator, return_exceptions=True)


async def watch(pid: int, counts: Path, until: float) -> list[dict[str, Any]]:
    begin, lines = time.monotonic(), []
    while time.monotonic() < until:
        await asyncio.sleep(min(60.0, max(0.1, until - time.monotonic())))
        told = counts.read_text().splitlines() if counts.exists() else []
        last = json.loads(told[-1]) if told else {"types": [], "sizes": {}}
        lines.append({"minute": (time.monotonic() - begin) / 60, "rss_mb": rss_mb(pid), **last})
        sizes = {name: count for name, count in last["sizes"].items() if name in WATCHED}
        objects = sum(count for _, count in last["types"])
        print(f"{lines[-1]['minute']:5.1f} min  {lines[-1]['rss_mb']:6.1f} MB  {objects} objects  {sizes}", flush=True)
    return lines


def growth(lines: list[dict[str, Any]]) -> dict[str, int]:
    half, end = dict(lines[len(lines) // 2]["types"]), dict(lines[-1]["types"])
    grown = {name: count - half.get(name, 0) for name, count in end.items()}
    return dict(sorted(grown.items(), key=lambda item: -item[1])[:10])


async def soak(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        process, url = start(Path(folder), options)
        until = time.monotonic() + 60 * options.minutes
        try:
            watching = asyncio.create_task(watch(process.pid, Path(folder) / "counts", until))
            await load(url, options, until)
            lines = await watching
        finally:
            process.terminate()
            process.wait()
    print("grown in the second half:", growth(lines))
    if options.json:
        options.json.write_text(json.dumps(lines, indent=1) + "\n")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--rate", type=float, default=20.0, help="requests per second")
    arguments.add_argument("--step-ms", type=float, default=20.0, help="short steps fill bounded structures sooner")
    arguments.add_argument("--tenants", type=int, default=0, help="how many, with keys, limits and a ledger")
    arguments.add_argument("--fill", type=int, default=0, help="short requests before the load")
    arguments.add_argument("--json", type=Path)
    asyncio.run(soak(arguments.parse_args()))


if __name__ == "__main__":
    main()
