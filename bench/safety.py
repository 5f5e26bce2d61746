"""What 100 safety rules cost: throughput of a server with rules, beside one without, in turns.

    python bench/safety.py [--model smollm2] [--streams 16] [--tokens 64] [--rounds 8] [--rules 100] [--json FILE]

Each round has a turn of either server: all streams at once, the same prompts, greedy. The ratio is the median over the
rounds of (tokens/s with rules) / (tokens/s without). No rule matches, so both answer the same.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp


def rules(count: int) -> str:
    """Terms of two made-up words, and a pattern in every tenth rule."""
    draw = random.Random(0)

    def word() -> str:
        return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(4, 11)))

    entries = [
        f"[[safety]]\nname = 'rule{number}'\n"
        + (f"patterns = ['{word()}-[0-9A-F]{{4,16}}']\n" if number % 10 == 0 else f"terms = ['{word()} {word()}']\n")
        for number in range(count)
    ]
    return "\n".join(entries)


class Server:
    def __init__(self, model: str, config: str) -> None:
        self.file = tempfile.NamedTemporaryFile("w", suffix=".toml")  # noqa: SIM115
        self.file.write(config)
        self.file.flush()
        self.log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        command = [
            str(Path(sys.executable).with_name("penstock")),
            "serve",
            model,
            "--config",
            self.file.name,
            "--port",
            "0",
        ]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.url = ""
        while not self.url:
            if self.process.poll() is not None:
                raise SystemExit(Path(self.log.name).read_text()[-2000:])
            if found := re.search(r"listening on (http://[\d.:]+)", Path(self.log.name).read_text()):
                self.url = found[1]
            time.sleep(0.1)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


async def turn(session: aiohttp.ClientSession, url: str, streams: int, tokens: int) -> float:
    """Tokens per second over all streams."""

    async def one(number: int) -> int:
        body = {
            "messages": [{"role": "user", "content": f"Tell a long story about the number {number}."}],
            "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        async with session.post(f"{url}/v1/chat/completions", json=body) as response:
            data = await response.read()
        if not (counts := re.findall(rb'"completion_tokens":(\d+)', data)):
            raise SystemExit(f"no usage in {data[:500]!r}")
        return int(counts[-1])

    start = time.monotonic()
    counts = await asyncio.gather(*(one(number) for number in range(streams)))
    return sum(counts) / (time.monotonic() - start)


async def measure(options: argparse.Namespace, servers: dict[str, Server]) -> dict[str, Any]:
    found: dict[str, list[float]] = {name: [] for name in servers}
    async with aiohttp.ClientSession() as session:
        for server in servers.values():
            while (await session.get(f"{server.url}/ready")).status != 200:
                await asyncio.sleep(0.2)
            await turn(session, server.url, options.streams, options.tokens)
        for number in range(options.rounds):
            for name in sorted(servers, reverse=bool(number % 2)):
                found[name].append(await turn(session, servers[name].url, options.streams, options.tokens))
    ratios = [there / without for there, without in zip(found["rules"], found["none"], strict=True)]
    return {
        "tokens_per_s": {name: round(statistics.median(values), 1) for name, values in found.items()},
        "ratio": round(statistics.median(ratios), 4),
        "ratios": [round(one, 3) for one in ratios],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    servers = {"none": Server(options.model, ""), "rules": Server(options.model, rules(options.rules))}
    try:
        result = asyncio.run(measure(options, servers))
    finally:
        for server in servers.values():
            server.close()
    text = json.dumps(result)
    print(text)
    if options.json is not None:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
