"""The cost of limits per request: reserve and settle, with limits of every kind for key and tenant.

    python bench/limits.py [--redis redis://127.0.0.1:6379/0]

Prints medians in microseconds of one request: in this process, and over Redis alone and with 64 at once. Use a Redis
database of its own: entries stay there for some minutes, its clients' state for longer.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress

from penstock.errors import RateLimited
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.redis_limiter import RedisLimiter
from penstock.gateway.limits.reservation import Charge

LIMITS = Limits(
    requests_per_minute=10**9,
    tokens_per_minute=10**9,
    concurrent_requests=10**6,
    microusd_per_day=10**12,
    microusd_per_month=10**12,
)
IDENTITY = Identity(tenant="bench", key="k", key_limits=LIMITS, tenant_limits=LIMITS)
FULL = Identity(tenant="bench", key="full", key_limits=Limits(tokens_per_minute=100), tenant_limits=LIMITS)
ROUNDS = 7


async def request(limiter: Limiter) -> None:
    reservation = await limiter.reserve(IDENTITY, "r", Charge(200, 20, 100))
    limiter.headers(reservation)
    await limiter.settle(reservation, Charge(150, 15))


async def rejection(limiter: Limiter) -> None:
    with suppress(RateLimited):
        await limiter.reserve(FULL, "r", Charge(60))


async def measure(limiter: Limiter, requests: int, at_once: int) -> None:
    await limiter.start(None)
    for name, work in (("reserve and settle", request), ("rejection", rejection)):
        rounds = [await one_round(limiter, work, requests, at_once) for _ in range(ROUNDS)]
        wall, cpu = (statistics.median(values) for values in zip(*rounds, strict=True))
        print(f"{type(limiter).__name__:13} {name:18} {at_once:3} at once: {wall:7.1f} µs, {cpu:6.1f} µs of CPU here")
    await limiter.close()


async def one_round(limiter: Limiter, work: object, requests: int, at_once: int) -> tuple[float, float]:
    assert callable(work)
    begun, begun_cpu = time.perf_counter(), time.process_time()
    for _ in range(requests // at_once):
        if at_once == 1:
            await work(limiter)
        else:
            await asyncio.gather(*(work(limiter) for _ in range(at_once)))
    return 1e6 * (time.perf_counter() - begun) / requests, 1e6 * (time.process_time() - begun_cpu) / requests


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--redis", help="URL of a Redis server")
    url = parser.parse_args(arguments).redis
    asyncio.run(measure(LocalLimiter(), 20_000, 1))
    if url is not None:
        for at_once in (1, 64):
            asyncio.run(measure(RedisLimiter(url, warm_up_s=0), 1024, at_once))


if __name__ == "__main__":
    main()
