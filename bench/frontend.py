"""What the HTTP frontend costs: a real server on a tiny model, so that the engine is as good as free.

    python bench/frontend.py [--streams 64] [--tokens 128] [--profile profile.txt]

Prints, for streaming chat requests over loopback: requests per second, time to first token, tokens per second, and the
CPU time the frontend process spent per streamed token (read from /proc, so a busy machine does not spoil it). With
--profile the frontend runs under cProfile, which makes it slower; look at the shares then, not at the figures.
"""

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import tiny_models

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--streams", type=int, default=64)
    arguments.add_argument("--tokens", type=int, default=128)
    arguments.add_argument("--profile", type=Path)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_models.make("llama", Path(folder) / "tiny")
        server, url = start(model, options.profile)
        try:
            asyncio.run(load(url, 4, 8))
            result = measure(server.pid, url, options.streams, options.tokens)
        finally:
            server.terminate()
            server.wait()
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


def start(model: Path, profile: Path | None) -> tuple[subprocess.Popen[str], str]:
    tool = ["-m", "cProfile", "-s", "tottime", "-o", str(profile)] if profile else []
    command = [
        sys.executable,
        *tool,
        str(Path(sys.executable).with_name("penstock")),
        "serve",
        str(model),
        "--port",
        "0",
    ]
    server = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "PENSTOCK_THREADS": "1"})
    assert server.stderr is not None
    for line in server.stderr:
        if found := re.search(r"url +(http://\S+)/v1", line):
            return server, found[1]
    raise SystemExit("the server did not start")


def measure(pid: int, url: str, streams: int, tokens: int) -> dict[str, float]:
    before, started = cpu_s(pid), time.perf_counter()
    firsts, events = asyncio.run(load(url, streams, tokens))
    spent, elapsed = cpu_s(pid) - before, time.perf_counter() - started
    return {
        "streams": streams,
        "tokens": events,
        "requests_per_s": round(streams / elapsed, 1),
        "tokens_per_s": round(events / elapsed, 1),
        "first_token_ms_median": round(statistics.median(firsts) * 1000, 1),
        "frontend_cpu_us_per_token": round(spent / events * 1e6, 1),
    }


async def load(url: str, streams: int, tokens: int) -> tuple[list[float], int]:
    """Times to first token, and the number of tokens that came."""
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=httpx.Limits(max_connections=streams)) as client:
        results = await asyncio.gather(*(stream(client, place, tokens) for place in range(streams)))
    return [first for first, _ in results], sum(count for _, count in results)


async def stream(client: httpx.AsyncClient, place: int, tokens: int) -> tuple[float, int]:
    body = {
        "model": "tiny",
        "messages": [{"role": "user", "content": f"number {place}"}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    started, first, count = time.perf_counter(), 0.0, 0
    async with client.stream("POST", "/v1/chat/completions", json=body) as response:
        async for line in response.aiter_lines():
            first = first or time.perf_counter() - started
            if '"completion_tokens":' in line:
                count = json.loads(line.removeprefix("data: "))["usage"]["completion_tokens"]
    return first, count


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S


if __name__ == "__main__":
    main()
