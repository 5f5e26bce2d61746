"""One of several servers that share limits: `python limiter_worker.py URL JOB SEED`. Starts its requests when it reads
a line, and writes what became of them as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import msgspec

sys.path.insert(0, str(Path(__file__).parents[1]))

from helpers.limiter_load import crowd
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.redis_limiter import RedisLimiter
from penstock.gateway.limits.reservation import Charge

REQUESTS = 250
SPEED_UP = 100  # of requests and of the pauses between attempts


async def main(url: str, job: dict[str, object], seed: int) -> None:
    limits = msgspec.convert(job["limits"], Limits)
    keys = ["k"] if job["owner"] == "key" else [f"k{number}" for number in range(7)]
    kinds = {"key_limits": limits} if job["owner"] == "key" else {"tenant_limits": limits}
    identities = [Identity(tenant="t", key=key, **kinds) for key in keys]
    limiter = RedisLimiter(url, warm_up_s=0, timeout_s=20)  # the machine may be busy
    await limiter.start(None)
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    history, rejections = await crowd(
        [limiter],
        identities,
        lambda: time.time_ns() // 1000,
        lambda seconds: asyncio.sleep(min(seconds, 60) / SPEED_UP),
        requests=REQUESTS,
        seed=seed,
    )
    await limiter.close()

    def amounts(charge: Charge) -> list[int]:
        return [charge.tokens, charge.microusd]

    entries = [
        [entry.identity.key, entry.start, entry.end, amounts(entry.reserved), amounts(entry.used)]
        for entry in history.entries
    ]
    print(json.dumps({"entries": entries, "rejections": len(rejections)}))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], json.loads(sys.argv[2]), int(sys.argv[3])))
