"""Time between tokens while long prompts arrive: a prefill and a decode replica against two ordinary replicas.

    python bench/pools.py [--model smollm2] [--rounds 3] [--seconds 20] [--streams 4] [--prompt 1500] [--every 4]
                          [--json FILE]

Two servers of the same model on this machine's CPU, each with two engines of one thread:

pools       replicas = 2, prefill_replicas = 1
ordinary    replicas = 2

In each turn, `--streams` answers are streamed for `--seconds`, and every `--every` seconds a long prompt comes that no
engine has cached. Servers take turns within each round, in a different order each time. Reported: time between two
tokens of the streams (p50, p99, p99.9, the longest), tokens per second of all streams, and TTFT of the long prompts.

Prediction, before the first run, for SmolLM2-135M and the defaults on two cores: an ordinary replica computes a prompt
in chunks of 512 tokens, each of which takes 0.5 to 1 s on one thread and holds up the streams beside it. That is 3
chunks in 4 s at one of two engines, so the p99 of ordinary replicas is the time of a chunk, 500 ms or more. With pools
no step of the decode replica has more than 16 tokens of a prompt: p99 below 60 ms, a tenth or less. The price: all
streams share one engine, so that the p50 is 1.2 to 1.8 times that of ordinary replicas. TTFT of long prompts is about
the same, since one comes at a time: a prefill without streams beside it, and a transfer of about 0.1 s.

What came of it is in docs/SCALING.md: the p99 was predicted wrongly. Stalls are long but few, three for each prompt and
stream beside it, one in 200 gaps at this load, so that the p99 does not see them. The longest gap does.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from penstock.cli.load_test.measures import percentile

SERVERS = {"ordinary": "", "pools": "prefill_replicas = 1\nprefill_min_tokens = 256\n"}
WORDS = ("river", "stone", "bridge", "water", "light", "garden", "window", "paper", "morning", "street", "letter")
PATIENCE_S = 120.0


class Server:
    def __init__(self, name: str, model: str, folder: Path) -> None:
        config = folder / f"{name}.toml"
        entry = f'name = "m"\nmodel = "{model}"\nreplicas = 2\nthreads = 1\nkv_memory = "400MB"\n'
        config.write_text(f"[[models]]\n{entry}{SERVERS[name]}")
        self.log = folder / f"{name}.log"
        command = [str(Path(sys.executable).with_name("penstock")), "serve", f"--config={config}", "--port", "0"]
        environment = {**os.environ, "PENSTOCK_DEVICE": "cpu"}
        with self.log.open("w") as log:
            self.process = subprocess.Popen(command, stderr=log, env=environment)
        self.url = self._wait()

    def _wait(self) -> str:
        until = time.monotonic() + PATIENCE_S
        while time.monotonic() < until and self.process.poll() is None:
            if found := re.search(r"docs +(http://\S+)/docs|ready: (http://[^\s\"]+)", self.log.read_text()):
                return found[1] or found[2]
            time.sleep(0.05)
        raise SystemExit(f"the server did not start:\n{self.log.read_text()}")

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(PATIENCE_S)


def text(count: int) -> str:
    """About so many tokens, that no prompt before had."""
    return " ".join(random.choice(WORDS) for _ in range(count))


def token_times(server: Server, prompt: str, max_tokens: int, stop: threading.Event) -> list[float]:
    """When the request was sent, and when each piece of the answer came."""
    body = {"model": "m", "prompt": prompt, "max_tokens": max_tokens, "ignore_eos": True, "stream": True}
    times = [time.monotonic()]
    with httpx.stream("POST", f"{server.url}/v1/completions", json=body, timeout=PATIENCE_S) as response:
        for line in response.iter_lines():
            if line.startswith("data: {"):
                times.append(time.monotonic())
            if stop.is_set():
                break
    return times


def turn(server: Server, seconds: float, streams: int, prompt: int, every: float) -> dict[str, Any]:
    """Streams for so long, with long prompts beside them; the first second does not count."""
    stop, never = threading.Event(), threading.Event()
    found: list[list[float]] = []
    first_tokens: list[float] = []

    def stream() -> None:
        found.append(token_times(server, text(20), 6000, stop))

    def ask() -> None:
        times = token_times(server, text(prompt), 4, never)
        first_tokens.append(times[1] - times[0])

    threads = [threading.Thread(target=stream) for _ in range(streams)]
    for one in threads:
        one.start()
    time.sleep(1.0)
    begin = time.monotonic()
    while time.monotonic() < begin + seconds - every:
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
        time.sleep(every)
    end = time.monotonic()
    stop.set()
    for one in threads:
        one.join()
    gaps = [after - before for times in found for before, after in pairwise(times[1:]) if begin <= after <= end]
    return {"gaps": gaps, "first_tokens": first_tokens, "tokens_per_s": len(gaps) / (end - begin)}


def summary(turns: list[dict[str, Any]]) -> dict[str, float]:
    gaps = sorted(gap * 1000 for one in turns for gap in one["gaps"])
    first = sorted(value * 1000 for one in turns for value in one["first_tokens"])
    return {
        "gap_p50_ms": percentile(gaps, 50),
        "gap_p99_ms": percentile(gaps, 99),
        "gap_p999_ms": percentile(gaps, 99.9),
        "gap_max_ms": gaps[-1],
        "gaps": len(gaps),
        "tokens_per_s": sum(one["tokens_per_s"] for one in turns) / len(turns),
        "ttft_p50_ms": percentile(first, 50),
        "ttft_max_ms": first[-1],
        "prompts": len(first),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--prompt", type=int, default=1500, help="words of a long prompt, about a token each")
    parser.add_argument("--every", type=float, default=4.0)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    turns: dict[str, list[dict[str, Any]]] = {name: [] for name in SERVERS}
    with tempfile.TemporaryDirectory() as folder:
        servers = {name: Server(name, asked.model, Path(folder)) for name in SERVERS}
        try:
            for server in servers.values():  # the first prompt of an engine touches its memory
                turn(server, 2 * asked.every, asked.streams, asked.prompt, asked.every)
            for number in range(asked.rounds):
                for name in list(SERVERS)[:: 1 if number % 2 else -1]:
                    turns[name].append(turn(servers[name], asked.seconds, asked.streams, asked.prompt, asked.every))
                    print(name, {key: round(value, 1) for key, value in summary(turns[name][-1:]).items()}, flush=True)
            metrics = httpx.get(f"{servers['pools'].url}/metrics").text
        finally:
            for server in servers.values():
                server.close()
    results = {name: summary(some) for name, some in turns.items()}
    for name, values in results.items():
        print(f"{name:9}", *(f"{key} {value:.1f}" for key, value in values.items()), sep="  ")
    print(*(line for line in metrics.splitlines() if line.startswith("penstock_kv_transfer")), sep="\n")
    if asked.json is not None:
        asked.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
