"""How a flood of one tenant delays another, on a real server with keys of two tenants.

    python bench/fairness.py [--model smollm2] [--policy fair] [--seconds 40] [--share-seconds 20] [--port 0]
                             [--json FILE]

alone    one request a second: the time to its first token
flood    the same beside 200 requests of another tenant. The bound is 2 x alone + (2 + look-ahead) flooded steps
shares   both tenants send more than the engine can do, differently long requests: what each was served, with weights
         of 1 and 1, then of 3 and 1

Exits with 1 if p95 is above the bound, or a share more than 10% off its weight, under the policy `fair`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import httpx

FLOOD, LIGHT, ADMIN = "flood", "light", "admin-key"  # two tenants, and a key
FLOOD_REQUESTS = 200
BACKLOG = 100  # requests of each tenant at once, while shares are measured
WEIGHTS = (1.0, 3.0)
TEXT = "The river runs over old stones and under the bridge, and nobody has counted how often it did so before. "


class Client:
    def __init__(self, http: httpx.AsyncClient, model: str) -> None:
        self.http = http
        self.model = model
        self.sent = 0
        self.keys: dict[str, str] = {}  # by tenant

    async def create_keys(self) -> None:
        for tenant in (FLOOD, LIGHT):
            self.keys[tenant] = (await self.post("/admin/keys", {"tenant": tenant}))["key"]

    async def post(self, path: str, body: dict[str, Any]) -> Any:
        answer = await self.http.post(path, json=body, headers=bearer(ADMIN))
        answer.raise_for_status()
        return answer.json()

    async def first_token_s(self, tenant: str, sentences: int, tokens: int) -> float:
        """Stream one completion to its end; the time to its first token."""
        self.sent += 1
        body = {
            "model": self.model, "prompt": f"{self.sent}. {TEXT * sentences}", "max_tokens": tokens,
            "ignore_eos": True, "stream": True, "temperature": 0,
        }  # fmt: skip
        start, first = time.monotonic(), 0.0
        async with self.http.stream("POST", "/v1/completions", json=body, headers=bearer(self.keys[tenant])) as answer:
            assert answer.status_code == 200, await answer.aread()
            async for line in answer.aiter_lines():
                if line.startswith("data:") and not first:
                    first = time.monotonic() - start
        return first

    async def ask(self, path: str) -> Any:
        answer = await self.http.get(path, headers=bearer(ADMIN))
        answer.raise_for_status()
        return answer.json()

    async def served(self) -> dict[str, int]:
        """Cost by tenant so far."""
        rows = (await self.ask("/observe/tenants"))["tenants"]
        return {row["tenant"]: row["cost"] for row in rows}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@contextlib.asynccontextmanager
async def in_background(work: list[Coroutine[Any, Any, Any]]) -> AsyncIterator[list[asyncio.Task[Any]]]:
    tasks = [asyncio.create_task(one) for one in work]
    try:
        yield tasks
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def one_a_second(client: Client, seconds: int) -> list[float]:
    tasks = []
    for _ in range(seconds):
        tasks.append(asyncio.create_task(client.first_token_s(LIGHT, 2, 8)))
        await asyncio.sleep(1.0)
    return list(await asyncio.gather(*tasks))


async def one_after_another(client: Client, tenant: str, repeats: int, tokens: int) -> None:
    """So that the tenant always has requests that wait."""
    while True:
        await client.first_token_s(tenant, repeats, tokens)


async def step_times(client: Client, last: int) -> list[float]:
    window = await client.ask(f"/observe/steps?last={last}&columns={min(last, 5000)}&rows=0")
    return [us * 1e-6 / window["stride"] for us in window["steps"]["us"]]


def p95(values: list[float]) -> float:
    return sorted(values)[min(len(values) - 1, int(0.95 * len(values)))]


def p95_of_time(steps: list[float]) -> float:
    """A request that comes at any time comes in a step of this length or a shorter one with a probability of 0.95."""
    left = 0.05 * sum(steps)
    for seconds in sorted(steps, reverse=True):
        left -= seconds
        if left <= 0:
            return seconds
    return 0.0


async def measure_flood(client: Client, seconds: int) -> dict[str, float]:
    await client.first_token_s(LIGHT, 2, 8)  # warms up
    alone = await one_a_second(client, seconds)
    flood = [client.first_token_s(FLOOD, 6, 200 + 37 * n % 400) for n in range(FLOOD_REQUESTS)]
    async with in_background(flood) as tasks:
        await asyncio.sleep(3.0)
        before = (await client.ask("/observe/steps?last=1&columns=1&rows=0"))["last"]
        beside = await one_a_second(client, seconds)
        after = (await client.ask("/observe/steps?last=1&columns=1&rows=0"))["last"]
        open_requests = sum(not task.done() for task in tasks)
        steps = await step_times(client, min(after - before, 5000))
    facts = await client.ask("/observe/facts")
    lookahead = facts["settings"]["schedule"]["lookahead"]
    if lookahead is None:  # the default
        lookahead = int(facts["engine"]["device"] != "cpu")
    bound = 2 * p95(alone) + (2 + lookahead) * p95_of_time(steps)
    return {
        "alone_p50_s": statistics.median(alone), "alone_p95_s": p95(alone),
        "beside_p50_s": statistics.median(beside), "beside_p95_s": p95(beside),
        "flooded_step_p95_s": p95_of_time(steps), "bound_s": bound, "flood_left": open_requests,
    }  # fmt: skip


async def measure_shares(client: Client, seconds: int, weight: float) -> dict[str, float]:
    """`weight`: of the first tenant; the other has 1."""
    await client.post(f"/admin/tenants/{FLOOD}", {"weight": weight})
    await asyncio.sleep(1.0)  # it acts within a second
    work = [one_after_another(client, FLOOD, 4, 100) for _ in range(BACKLOG)]
    work += [one_after_another(client, LIGHT, 1, 40) for _ in range(BACKLOG)]
    async with in_background(work):
        await asyncio.sleep(3.0)
        before = await client.served()
        await asyncio.sleep(seconds)
        after = await client.served()
        rows = (await client.ask("/observe/tenants"))["tenants"]
    served = {tenant: after[tenant] - before[tenant] for tenant in (FLOOD, LIGHT)}
    if not all(row["waiting"] for row in rows):
        raise SystemExit("a tenant had nothing left to do")
    return {f"ratio_at_weight_{weight:g}": served[FLOOD] / served[LIGHT]}


async def measure(url: str, model: str, seconds: int, share_seconds: int, *, fair: bool) -> dict[str, float]:
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=None, limits=limits) as http:
        client = Client(http, model)
        await client.create_keys()
        found = await measure_flood(client, seconds)
        if fair:
            for weight in WEIGHTS:
                found |= await measure_shares(client, share_seconds, weight)
        return found


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--model", default="smollm2")
    arguments.add_argument("--policy", default="fair")
    arguments.add_argument("--seconds", type=int, default=40)
    # A window must hold many requests: counters of tenants differ by up to a few of them.
    arguments.add_argument("--share-seconds", type=int, default=20)
    arguments.add_argument("--port", type=int, default=0)
    arguments.add_argument("--max-sequences", default="16")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as log:
        command = [str(Path(sys.executable).with_name("penstock")), "serve", options.model, "--port", str(options.port)]
        command += ["--keys", "--admin-key", ADMIN, "--data-dir", folder]
        command += ["--policy", options.policy, "--max-sequences", options.max_sequences]
        process = subprocess.Popen(command, stderr=log)
        try:
            url = wait_until_ready(process, log)
            fair = options.policy == "fair"
            found = asyncio.run(measure(url, options.model, options.seconds, options.share_seconds, fair=fair))
        finally:
            process.terminate()
            process.wait(30)
    found = {name: round(value, 4) for name, value in found.items()}
    print(json.dumps({"policy": options.policy, **found}, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")
    off = [abs(found[f"ratio_at_weight_{weight:g}"] / weight - 1) > 0.1 for weight in WEIGHTS] if fair else []
    if any(off) or (fair and found["beside_p95_s"] > found["bound_s"]):
        sys.exit(1)


def wait_until_ready(process: subprocess.Popen[bytes], log: Any) -> str:
    while process.poll() is None:
        log.seek(0)
        if found := re.search(r"docs +(http://\S+)/docs", log.read()):
            return found[1]
        time.sleep(0.2)
    log.seek(0)
    raise SystemExit(f"the server ended with {process.returncode}:\n{log.read()}")


if __name__ == "__main__":
    main()
