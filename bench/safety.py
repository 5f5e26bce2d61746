"""What 100 safety rules cost: tenants of one server take turns, of which the rules name one; a third is the control.

    python bench/safety.py [--model smollm2] [--streams 16] [--tokens 32] [--seconds 360] [--rules 100] [--json FILE]
    python bench/safety.py --frontend [--streams 64] [--tokens 100] [--seconds 180]    # an engine that computes nothing

A round has two turns of each tenant, there and back (none, control, rules, rules, control, none), so that what drifts
falls on all alike; two processes that do the same differ by some percent, so there is one. A turn has all streams at
once, the same prompts, greedy; no rule matches, so all answer the same. Its figure is tokens/s. Printed are the medians
over the rounds of (the tenant) / (without rules), each with the 95% interval of the median that follows from the order
of the ratios, without assumptions about their distribution. The bar is 2%.

With `--frontend` the figure is the CPU time of the frontend (`frontend.py`) per token, requests included.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import math
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp

import frontend
from penstock.gateway.keys.configured import tenant_of_key

COMMON = ("the", "a", "once", "there", "was", "and", "in", "of", "to", "she", "he", "it", "with", "number")
TENANTS = ("none", "control", "rules")
THERE_AND_BACK = (*TENANTS, *reversed(TENANTS))
KEYS = {name: f"key-of-{name}" for name in TENANTS}
FRONTEND_STEP_MS = 2.0
PROMPT_WORDS = 40
DEFAULTS = {True: {"streams": 64, "tokens": 100, "seconds": 180}, False: {"streams": 16, "tokens": 32, "seconds": 360}}


def rules(count: int, tenant: str | None = None) -> str:
    """Terms of two words, the first of which is a common one in every third, and a pattern in every tenth rule. For all
    tenants, or one of them."""
    whose = "" if tenant is None else f"tenants = ['{tenant}']\n"
    draw = random.Random(0)

    def word() -> str:
        return "".join(draw.choices("abcdefghijklmnopqrstuvwxyz", k=draw.randrange(4, 11)))

    def term(number: int) -> str:
        return f"{COMMON[number % len(COMMON)] if number % 3 == 0 else word()} {word()}"

    entries = [
        f"[[safety]]\nname = 'rule{number}'\n{whose}"
        + (f"patterns = ['{word()}-[0-9A-F]{{4,16}}']\n" if number % 10 == 0 else f"terms = ['{term(number)}']\n")
        for number in range(count)
    ]
    return "\n".join(entries)


class Server:
    def __init__(self, model: str, *flags: str) -> None:
        self.log = tempfile.NamedTemporaryFile()  # noqa: SIM115
        command = [str(Path(sys.executable).with_name("penstock")), "serve", model, "--port", "0", *flags]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        self.url = ""
        while not self.url:
            if self.process.poll() is not None:
                raise SystemExit(Path(self.log.name).read_text()[-2000:])
            if found := re.search(r"listening on (http://[\d.:]+)", Path(self.log.name).read_text()):
                self.url = found[1]
            time.sleep(0.1)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


async def turn(session: aiohttp.ClientSession, url: str, key: str, streams: int, tokens: int) -> float:
    """Tokens per second over all streams."""

    async def one(number: int) -> int:
        body = {
            "messages": [{"role": "user", "content": f"Tell a long story about the number {number}."}],
            "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True},
        }  # fmt: skip
        headers = {"Authorization": f"Bearer {key}"}
        async with session.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            data = await response.read()
        if not (counts := re.findall(rb'"completion_tokens":(\d+)', data)):
            raise SystemExit(f"no usage in {data[:500]!r}")
        return int(counts[-1])

    start = time.monotonic()
    counts = await asyncio.gather(*(one(number) for number in range(streams)))
    return sum(counts) / (time.monotonic() - start)


@contextlib.contextmanager
def tenants(count: int) -> Iterator[tuple[str, ...]]:
    """Flags of a server with the tenants, the last of which has so many rules."""
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write(rules(count, tenant_of_key(KEYS["rules"].encode())))
        file.flush()
        yield "--config", file.name, "--api-key", ",".join(KEYS.values())


def rounds(seconds: float) -> Iterator[int]:
    """The first one does not count."""
    end = time.monotonic() + seconds
    for number in itertools.count():
        if number > 1 and time.monotonic() > end:
            return
        yield number


async def measure(options: argparse.Namespace, url: str) -> dict[str, Any]:
    """Tokens per second."""
    found: dict[str, list[float]] = {name: [] for name in TENANTS}
    async with aiohttp.ClientSession() as session:
        while (await session.get(f"{url}/ready")).status != 200:
            await asyncio.sleep(0.2)
        for number in rounds(options.seconds):
            speeds: dict[str, list[float]] = {name: [] for name in TENANTS}
            for name in THERE_AND_BACK:
                speeds[name].append(await turn(session, url, KEYS[name], options.streams, options.tokens))
            for name, (first, second) in speeds.items() if number else ():
                found[name].append(2 / (1 / first + 1 / second))
    return summary("tokens_per_s", found)


def measure_frontend(options: argparse.Namespace, flags: Sequence[str]) -> dict[str, Any]:
    """CPU time of the frontend per token, in microseconds."""
    found: dict[str, list[float]] = {name: [] for name in TENANTS}
    requests = {
        name: [
            frontend.request("chat", options.model, place, PROMPT_WORDS, options.tokens, key)
            for place in range(options.streams)
        ]
        for name, key in KEYS.items()
    }
    source = Path(__file__).parent.parent / "src"
    with frontend.Server(source, options.model, FRONTEND_STEP_MS, *flags) as server:
        for number in rounds(options.seconds):
            spent = dict.fromkeys(TENANTS, 0.0)
            for name in THERE_AND_BACK:
                spent[name] += frontend.load(server, requests[name])[1]
            for name, seconds in spent.items() if number else ():
                found[name].append(seconds / (2 * options.streams * options.tokens) * 1e6)
    return summary("cpu_us_per_token", found)


def summary(unit: str, found: dict[str, list[float]]) -> dict[str, Any]:
    result: dict[str, Any] = {
        "rounds": len(found["none"]),
        unit: {name: round(statistics.median(values), 3) for name, values in found.items()},
    }
    for name in ("control", "rules"):
        ratios = [one / without for one, without in zip(found[name], found["none"], strict=True)]
        result[f"{name}_ratio"] = round(statistics.median(ratios), 4)
        result[f"{name}_95%"] = [round(one, 4) for one in interval(ratios)]
        result[f"{name}_ratios"] = [round(one, 3) for one in ratios]
    return result


def interval(values: list[float]) -> tuple[float, float]:
    """Of the median, 95%: the k-th smallest and the k-th largest value, where k - 1 or fewer of n fair coins are heads
    with a probability of at most 2.5%."""
    ordered, count, below, k = sorted(values), len(values), 0.0, 0
    while k < count // 2 and below + math.comb(count, k) / 2**count <= 0.025:
        below += math.comb(count, k) / 2**count
        k += 1
    k = max(k, 1)
    return ordered[k - 1], ordered[-k]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--streams", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--seconds", type=int, help="begin rounds for so long")
    parser.add_argument("--rules", type=int, default=100)
    parser.add_argument("--frontend", action="store_true", help="CPU time per token, with an engine of no cost")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    for name, value in DEFAULTS[options.frontend].items():
        setattr(options, name, getattr(options, name) or value)
    with tenants(options.rules) as flags:
        if options.frontend:
            result = measure_frontend(options, flags)
        else:
            with Server(options.model, *flags) as server:
                result = asyncio.run(measure(options, server.url))
    text = json.dumps(result)
    print(text)
    if options.json is not None:
        options.json.write_text(text)


if __name__ == "__main__":
    main()
