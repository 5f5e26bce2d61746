from __future__ import annotations

import asyncio

import pytest

from penstock.batch.limiter import Capacity, LineLimiter, ModelLimiters, line_limit


@pytest.mark.parametrize(
    ("slots", "interactive", "limit"),
    [(64, 0, 48), (64, 1, 15), (64, 40, 6), (64, 64, 0), (64, 1000, 0), (1, 0, 1), (1, 1, 0), (2, 1, 0)],
)
def test_lines_get_what_interactive_requests_leave(slots: int, interactive: int, limit: int) -> None:
    assert line_limit(Capacity(slots, interactive)) == limit


def test_tenants_take_turns() -> None:
    async def run() -> list[str]:
        limiter, admitted = LineLimiter(lambda: limit), list[str]()

        async def work(tenant: str) -> None:
            await limiter.acquire(tenant)
            admitted.append(tenant)

        limit = 0
        tasks = [asyncio.create_task(work(tenant)) for tenant in ("a", "a", "a", "b", "c", "b")]
        await asyncio.sleep(0)
        limit = 6
        limiter.admit()
        await asyncio.gather(*tasks)
        assert limiter.running == 6
        return admitted

    assert asyncio.run(run()) == ["a", "b", "c", "a", "b", "a"]


def test_a_cancelled_wait_takes_no_place() -> None:
    async def run() -> None:
        limiter = LineLimiter(lambda: 1)
        await limiter.acquire("a")
        waiting = [asyncio.create_task(limiter.acquire("a")) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await asyncio.sleep(0)
        limiter.release()  # admits the second, which is cancelled before it notices
        waiting[1].cancel()
        await asyncio.gather(*waiting[:2], return_exceptions=True)
        await waiting[2]
        assert limiter.running == 1

    asyncio.run(run())


def test_a_model_that_is_not_ready_gets_no_lines() -> None:
    capacities: dict[str, Capacity] = {"there": Capacity(8, 0)}
    limiters = ModelLimiters(capacities.get)
    assert limiters.of("there").limit() == 6
    assert limiters.of("gone").limit() == 0
    assert limiters.of("there") is limiters.of("there")
