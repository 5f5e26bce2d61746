"""Clients of a limiter: random ones for properties, and many at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence

from hypothesis import strategies as st

from helpers.limit_history import WINDOW_US, Entry, FakeClock, LimitHistory
from penstock.errors import RateLimited
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.limiter import Limiter
from penstock.gateway.limits.reservation import Charge, Reservation

# Two keys of one tenant, and a key of another whose names run together with theirs.
LIMITS = Limits(
    requests_per_minute=5, tokens_per_minute=100, concurrent_requests=3, microusd_per_day=400, microusd_per_month=700
)
TENANT_LIMITS = Limits(
    requests_per_minute=7, tokens_per_minute=150, concurrent_requests=4, microusd_per_day=600, microusd_per_month=900
)
IDENTITIES = (
    Identity(tenant="a", key="k1", key_limits=LIMITS, tenant_limits=TENANT_LIMITS),
    Identity(tenant="a", key="k2", key_limits=LIMITS, tenant_limits=TENANT_LIMITS),
    Identity(tenant="a:k1", key="", tenant_limits=LIMITS),
)
GAPS = st.one_of(st.just(0), st.integers(0, WINDOW_US), st.sampled_from([1, WINDOW_US // 2, WINDOW_US - 1, WINDOW_US]))
# (microseconds that pass, whether a request starts, a number that picks an identity or an open request, tokens,
# micro-dollars)
STEPS = st.lists(
    st.tuples(GAPS, st.booleans(), st.integers(0, 11), st.integers(0, 100), st.integers(0, 400)), max_size=40
)
Steps = Sequence[tuple[int, bool, int, int, int]]


async def play(limiters: Sequence[Limiter], clock: FakeClock, steps: Steps) -> LimitHistory:
    """Requests start and end at random; each decision is compared with the history."""
    history = LimitHistory()
    open_: list[tuple[Limiter, Reservation, Entry]] = []
    for gap, starts, number, tokens, microusd in steps:
        clock.us += gap
        if starts or not open_:
            identity, charge = IDENTITIES[number % len(IDENTITIES)], Charge(tokens, microusd)
            limiter = limiters[number % len(limiters)]
            reservation = await try_to_reserve(limiter, identity, charge)
            assert (reservation is not None) == history.fits(identity, charge, clock.us)
            if reservation is not None:
                open_.append((limiter, reservation, history.begin(identity, charge, clock.us)))
        else:
            limiter, reservation, entry = open_.pop(number % len(open_))
            used = Charge(min(tokens, entry.reserved.tokens), min(microusd, entry.reserved.microusd))
            await limiter.settle(reservation, used)
            history.end(entry, used, clock.us)
    for limiter, reservation, entry in open_:
        await limiter.settle(reservation, entry.reserved)
        history.end(entry, entry.reserved, clock.us)
    return history


async def try_to_reserve(limiter: Limiter, identity: Identity, charge: Charge) -> Reservation | None:
    try:
        return await limiter.reserve(identity, "r", charge)
    except RateLimited:
        return None


async def crowd(
    limiters: Sequence[Limiter],
    identities: Sequence[Identity],
    now: Callable[[], int],
    sleep: Callable[[float], Awaitable[None]],
    *,
    requests: int = 500,
    seed: int = 0,
) -> tuple[LimitHistory, list[RateLimited]]:
    """Requests that are all there at once; each tries again after the time it was told, three times at most. The
    history is exact only where nothing comes between a decision and `now`."""
    history, rejections, draw = LimitHistory(), list[RateLimited](), random.Random(seed)

    async def client(number: int) -> None:
        limiter, identity = limiters[number % len(limiters)], identities[number % len(identities)]
        charge = Charge(draw.randint(1, 100), draw.randint(1, 50))
        for _ in range(3):
            try:
                reservation = await limiter.reserve(identity, f"r{number}", charge)
            except RateLimited as error:
                rejections.append(error)
                await sleep(error.retry_after_s or 0)
                continue
            entry = history.begin(identity, charge, now())
            await sleep(draw.random() * 5)
            used = Charge(draw.randint(0, charge.tokens), draw.randint(0, charge.microusd))
            history.end(entry, used, now())
            await limiter.settle(reservation, used)
            return

    await asyncio.gather(*(client(number) for number in range(requests)))
    return history, rejections
