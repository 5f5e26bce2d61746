"""The heartbeat of a limiter in Redis, without a Redis."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from helpers.server_process import PATIENCE_S
from penstock.gateway.limits.redis_limiter import RedisLimiter


def test_a_heartbeat_that_loses_its_cancellation_ends_with_the_limiter(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        limiter = RedisLimiter("redis://127.0.0.1:9/0", heartbeat_s=0.001)
        await limiter.start(None)
        waits = asyncio.Event()

        async def renew(lease_us: int) -> bool:
            if waits.is_set():  # it loses one cancellation, not all
                return False
            waits.set()
            with suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            return False

        monkeypatch.setattr(limiter._store, "renew", renew)
        await waits.wait()
        async with asyncio.timeout(PATIENCE_S):
            await limiter.close()

    asyncio.run(main())
