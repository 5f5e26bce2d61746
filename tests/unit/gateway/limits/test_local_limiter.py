"""The limiter of a single server: never over a limit in any window, and never more strict than that."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from hypothesis import given
from msgspec.structs import replace

from helpers.limit_history import MONTH_END_US, WINDOW_US, FakeClock, use
from helpers.limiter_load import IDENTITIES, LIMITS, STEPS, TENANT_LIMITS, Steps, crowd, play, try_to_reserve
from helpers.virtual_time import run_virtual
from penstock.errors import BudgetExhausted, InvalidRequest, RateLimited
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.account import Account, AccountUse
from penstock.gateway.limits.limiter import Settlement, Spend
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.gateway.limits.reservation import Charge

T = TypeVar("T")
SECOND = 1_000_000


def now(coroutine: Coroutine[Any, Any, T]) -> T:
    """Its result, without an event loop: it must not suspend."""
    try:
        coroutine.send(None)
    except StopIteration as stop:
        result: T = stop.value
        return result
    raise AssertionError("the limiter waits")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def limiter(clock: FakeClock) -> LocalLimiter:
    return LocalLimiter(clock.monotonic_ns, clock.time)


def someone(key: Limits | None = None, tenant: Limits | None = None, name: str = "k") -> Identity:
    return Identity(tenant="t", key=name, key_limits=key or Limits(), tenant_limits=tenant or Limits())


def rejected(limiter: LocalLimiter, identity: Identity, charge: Charge) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        now(limiter.reserve(identity, "r", charge))
    return caught.value


@given(STEPS)
def test_no_window_is_ever_over_and_what_fits_is_let_in(steps: Steps) -> None:
    clock = FakeClock()
    now(play([LocalLimiter(clock.monotonic_ns, clock.time)], clock, steps)).check()


def test_a_long_request_counts_until_a_minute_after_its_end(limiter: LocalLimiter, clock: FakeClock) -> None:
    """Its tokens may have been spent in its last second."""
    identity = someone(Limits(tokens_per_minute=100))
    reservation = now(limiter.reserve(identity, "r", Charge(100)))
    clock.us += 300 * SECOND
    rejected(limiter, identity, Charge(1))
    now(limiter.settle(reservation, Charge(99)))
    now(limiter.reserve(identity, "r", Charge(1)))
    clock.us += WINDOW_US - 1
    assert rejected(limiter, identity, Charge(2)).retry_after_s == 1e-6
    clock.us += 1
    now(limiter.reserve(identity, "r", Charge(99)))


@given(STEPS)
def test_without_open_requests_retry_after_is_exact(steps: Steps) -> None:
    clock = FakeClock(MONTH_END_US - 7 * 86_400 * SECOND)
    limiter = LocalLimiter(clock.monotonic_ns, clock.time)
    for gap, _, number, tokens, microusd in steps:
        clock.us += gap
        identity, charge = IDENTITIES[number % len(IDENTITIES)], Charge(tokens, microusd)
        reservation = now(try_to_reserve(limiter, identity, charge))
        if reservation is None:
            wait_s = rejected(limiter, identity, charge).retry_after_s or 0
            clock.us += round(wait_s * 1e6) - 1
            rejected(limiter, identity, charge)
            clock.us += 1
            reservation = now(limiter.reserve(identity, "r", charge))
        now(limiter.settle(reservation, charge))


def test_while_open_requests_are_in_the_way_it_is_the_earliest_possible_time(
    limiter: LocalLimiter, clock: FakeClock
) -> None:
    identity = someone(Limits(tokens_per_minute=100))
    now(limiter.settle(now(limiter.reserve(identity, "r", Charge(60))), Charge(60)))
    clock.us += 10 * SECOND
    now(limiter.reserve(identity, "r", Charge(40)))
    # 30 are free when the 60 leave, whatever becomes of the 40.
    assert rejected(limiter, identity, Charge(30)).retry_after_s == 50
    # 90 need the 60 to leave and some of the 40 to be given back; nobody knows when.
    assert rejected(limiter, identity, Charge(90)).retry_after_s == 50
    clock.us += 55 * SECOND
    assert rejected(limiter, identity, Charge(90)).retry_after_s == 1


def test_a_second_key_doubles_nothing(limiter: LocalLimiter) -> None:
    limits = Limits(tokens_per_minute=100)
    first, second = someone(limits, limits, "k1"), someone(limits, limits, "k2")
    now(limiter.reserve(first, "r", Charge(70)))
    error = rejected(limiter, second, Charge(31))
    assert (error.owner, error.limit) == ("tenant", "tokens_per_minute")
    now(limiter.reserve(second, "r", Charge(30)))


def test_key_and_tenant_are_reserved_together_or_not_at_all(limiter: LocalLimiter) -> None:
    generous, tight = Limits(tokens_per_minute=1000, requests_per_minute=9), Limits(tokens_per_minute=10)
    rejected_by_tenant = someone(generous, tight)
    now(limiter.reserve(rejected_by_tenant, "r", Charge(10)))
    before = now(limiter.use([Account("t", "k"), Account("t")]))
    for _ in range(20):
        rejected(limiter, rejected_by_tenant, Charge(10))
        rejected(limiter, someone(tight, generous), Charge(10))
    assert now(limiter.use([Account("t", "k"), Account("t")])) == before


def test_settling_gives_back_what_was_not_used_and_only_once(limiter: LocalLimiter) -> None:
    identity = someone(LIMITS, TENANT_LIMITS)
    reservation = now(limiter.reserve(identity, "r", Charge(100, 400)))
    for _ in range(2):
        now(limiter.settle(reservation, Charge(30, 100)))
    for one in now(limiter.use([Account("t", "k"), Account("t")])):
        assert one == AccountUse(requests=1, settled_tokens=30, settled_microusd_day=100, settled_microusd_month=100)
    now(limiter.reserve(identity, "r", Charge(70, 300)))


def test_more_than_was_reserved_counts_too(limiter: LocalLimiter) -> None:
    """Such as where an upstream counts other tokens than its tokenizer here."""
    identity = someone(Limits(tokens_per_minute=100))
    now(limiter.settle(now(limiter.reserve(identity, "r", Charge(50))), Charge(150)))
    assert limiter.counts.excess_tokens == 100
    assert rejected(limiter, identity, Charge(1)).retry_after_s == 60


def test_the_error_names_the_limit_that_lasts_longest(limiter: LocalLimiter, clock: FakeClock) -> None:
    clock.us = MONTH_END_US - 3600 * SECOND
    identity = someone(Limits(requests_per_minute=1, microusd_per_day=10), Limits(concurrent_requests=1))
    now(limiter.reserve(identity, "r", Charge(0, 6)))
    error = rejected(limiter, identity, Charge(0, 5))
    assert (type(error), error.limit, error.retry_after_s) == (RateLimited, "requests_per_minute", 60)
    clock.us += 60 * SECOND
    error = rejected(limiter, identity, Charge(0, 5))  # the money may be given back when the request ends
    assert error.retry_after_s == 1
    assert limiter.counts.rejected["tenant", "concurrent_requests"] == 2


def test_a_budget_lasts_until_the_utc_day_or_month_ends() -> None:
    clock = FakeClock(MONTH_END_US - 25 * 3600 * SECOND)
    limiter = LocalLimiter(clock.monotonic_ns, clock.time)
    identity = someone(Limits(microusd_per_day=10, microusd_per_month=15))
    now(limiter.settle(now(limiter.reserve(identity, "r", Charge(0, 10))), Charge(0, 10)))
    error = rejected(limiter, identity, Charge(0, 1))
    assert isinstance(error, BudgetExhausted)
    assert (error.code, error.limit, error.retry_after_s) == ("insufficient_quota", "microusd_per_day", 3600)
    clock.us += 3600 * SECOND
    error = rejected(limiter, identity, Charge(0, 6))
    assert (error.limit, error.retry_after_s) == ("microusd_per_month", 24 * 3600)
    now(limiter.settle(now(limiter.reserve(identity, "r", Charge(0, 5))), Charge(0, 5)))
    clock.us += 24 * 3600 * SECOND
    now(limiter.reserve(identity, "r", Charge(0, 10)))


def test_a_request_over_midnight_counts_on_both_days(limiter: LocalLimiter, clock: FakeClock) -> None:
    clock.us = MONTH_END_US - SECOND
    identity = someone(Limits(microusd_per_day=10))
    reservation = now(limiter.reserve(identity, "r", Charge(0, 10)))
    clock.us += 2 * SECOND
    rejected(limiter, identity, Charge(0, 1))
    now(limiter.settle(reservation, Charge(0, 8)))
    rejected(limiter, identity, Charge(0, 3))
    now(limiter.reserve(identity, "r", Charge(0, 2)))


def test_a_wall_clock_that_is_set_back_brings_no_budget_back(limiter: LocalLimiter, clock: FakeClock) -> None:
    times = iter([MONTH_END_US / 1e6 + 1, MONTH_END_US / 1e6 + 2, MONTH_END_US / 1e6 - 5])
    limiter._wall_clock = lambda: next(times)
    identity = someone(Limits(microusd_per_day=10))
    now(limiter.settle(now(limiter.reserve(identity, "r", Charge(0, 10))), Charge(0, 10)))
    rejected(limiter, identity, Charge(0, 1))


def test_a_wall_clock_that_was_far_ahead_is_followed_back(limiter: LocalLimiter, clock: FakeClock) -> None:
    """Otherwise the budget of a day would last for years."""
    identity = someone(Limits(microusd_per_day=10))
    now(limiter.settle(now(limiter.reserve(identity, "r", Charge(0, 10))), Charge(0, 10)))
    limiter._wall_clock = lambda: clock.time() - 3 * 86_400
    now(limiter.reserve(identity, "r", Charge(0, 10)))


@pytest.mark.parametrize(
    ("key", "charge", "says", "param"),
    [
        (Limits(tokens_per_minute=100), Charge(101, 0, 40), "at most 60 tokens", "max_tokens"),
        (Limits(tokens_per_minute=100), Charge(150, 0, 100), "shorten the prompt", None),
        (Limits(microusd_per_day=100), Charge(0, 101), "daily budget of key 'k' is $0.000100", "max_tokens"),
        (Limits(microusd_per_month=100), Charge(0, 101), "monthly budget", "max_tokens"),
        (Limits(requests_per_minute=0), Charge(), "requests_per_minute of key 'k' is 0", None),
        (Limits(concurrent_requests=0), Charge(), "concurrent_requests", None),
    ],
)
def test_what_can_never_fit_is_an_invalid_request_that_says_what_to_lower(
    limiter: LocalLimiter, key: Limits, charge: Charge, says: str, param: str | None
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        now(limiter.reserve(someone(key), "r", charge))
    assert says in caught.value.message
    assert caught.value.param == param
    with pytest.raises(InvalidRequest, match="tenant 't'"):
        now(limiter.reserve(someone(tenant=key), "r", charge))


def test_headers_show_what_is_left_of_the_tighter_limit(limiter: LocalLimiter, clock: FakeClock) -> None:
    identity = someone(
        Limits(requests_per_minute=10, tokens_per_minute=1000), Limits(requests_per_minute=5, tokens_per_minute=5000)
    )
    first = now(limiter.reserve(identity, "r", Charge(400)))
    clock.us += 15 * SECOND
    now(limiter.settle(first, Charge(100)))
    clock.us += 30 * SECOND
    assert limiter.headers(now(limiter.reserve(identity, "r", Charge(400)))) == {
        "x-ratelimit-limit-requests": "5",
        "x-ratelimit-remaining-requests": "3",
        "x-ratelimit-reset-requests": "1m0s",
        "x-ratelimit-limit-tokens": "1000",
        "x-ratelimit-remaining-tokens": "500",
        "x-ratelimit-reset-tokens": "1m0s",
    }
    error = rejected(limiter, identity, Charge(600))
    assert error.retry_after_s == 30
    assert error.headers["retry-after-ms"] == "30000"
    assert error.headers["x-ratelimit-remaining-tokens"] == "500"
    assert error.message == (
        "rate limit reached for key 'k' (tokens_per_minute): limit 1000, used 500, requested 600; try again in 30s"
    )


def test_a_request_that_never_began_does_not_count(limiter: LocalLimiter, clock: FakeClock) -> None:
    identity = someone(Limits(requests_per_minute=2, tokens_per_minute=100), Limits(requests_per_minute=2))
    first = now(limiter.reserve(identity, "r", Charge(60, 5)))
    clock.us += 10 * SECOND
    second = now(limiter.reserve(identity, "r", Charge(40, 5)))
    now(limiter.settle(first, Charge(), never_began=True))
    assert now(limiter.use([Account("t", "k"), Account("t")])) == 2 * [
        AccountUse(requests=1, reserved_tokens=40, open_requests=1, reserved_microusd=5)
    ]
    now(limiter.settle(first, Charge(9)))  # only the first call does anything
    now(limiter.reserve(identity, "r", Charge(60)))
    assert rejected(limiter, identity, Charge()).retry_after_s == 60
    now(limiter.settle(second, Charge(), never_began=True))
    now(limiter.reserve(identity, "r", Charge()))


def test_identities_without_limits_have_no_headers_and_no_key_account(limiter: LocalLimiter) -> None:
    reservation = now(limiter.reserve(Identity(tenant="t"), "r", Charge(400, 10**12)))
    assert limiter.headers(reservation) == {}
    now(limiter.settle(reservation, Charge()))
    assert list(limiter._meters) == [Account("t")]


@dataclass
class History:
    settlements: list[Settlement] = field(default_factory=list)
    spends: list[Spend] = field(default_factory=list)

    async def settled_since(self, time: float, account: Account | None = None) -> Iterable[Settlement]:
        return [one for one in self.settlements if one.time >= time]

    async def spend(self, now: float, account: Account | None = None) -> Iterable[Spend]:
        return self.spends


def test_a_restart_forgets_neither_the_last_minute_nor_the_budget(limiter: LocalLimiter, clock: FakeClock) -> None:
    at = clock.time()
    history = History(
        [Settlement(at - 20, "t", "k", 80), Settlement(at - 61, "t", "k", 15), Settlement(at - 30, "t", "other", 5)],
        [Spend("t", "k", 4, 10), Spend("t", "", 5, 19)],
    )
    now(limiter.start(history))
    limits = Limits(requests_per_minute=3, tokens_per_minute=100, microusd_per_day=10, microusd_per_month=20)
    assert now(limiter.use([Account("t", "k"), Account("t")])) == [
        AccountUse(requests=1, settled_tokens=80, settled_microusd_day=4, settled_microusd_month=10),
        AccountUse(requests=2, settled_tokens=85, settled_microusd_day=5, settled_microusd_month=19),
    ]
    assert rejected(limiter, someone(limits), Charge(21)).retry_after_s == 40
    assert rejected(limiter, someone(tenant=limits), Charge(16)).retry_after_s == 30
    assert rejected(limiter, someone(limits), Charge(0, 7)).limit == "microusd_per_day"
    assert rejected(limiter, someone(tenant=limits), Charge(0, 2)).limit == "microusd_per_month"
    now(limiter.reserve(someone(limits, limits), "r", Charge(15, 1)))


def test_accounts_without_use_are_forgotten_at_the_end_of_a_day(limiter: LocalLimiter, clock: FakeClock) -> None:
    for number in range(100):
        identity = someone(name=f"k{number}")
        now(limiter.settle(now(limiter.reserve(identity, "r", Charge(10, number))), Charge(10, number)))
    running = now(limiter.reserve(someone(name="k0"), "r", Charge(10)))
    clock.us = MONTH_END_US + 86_400 * SECOND
    now(limiter.use([]))
    assert set(limiter._meters) == {Account("t"), Account("t", "k0")}
    now(limiter.settle(running, Charge(10)))


@pytest.mark.parametrize(
    "limits",
    [
        Limits(tokens_per_minute=2000), Limits(requests_per_minute=60), Limits(concurrent_requests=7),
        Limits(microusd_per_day=800), Limits(microusd_per_month=1200),
        Limits(requests_per_minute=60, tokens_per_minute=2000, concurrent_requests=20, microusd_per_day=2500),
    ],
)  # fmt: skip
@pytest.mark.parametrize("owner", ["key", "tenant"])
def test_500_requests_at_once_never_exceed_a_limit(limits: Limits, owner: str) -> None:
    one = replace(someone(), key_limits=limits) if owner == "key" else replace(someone(), tenant_limits=limits)
    identities = [one] if owner == "key" else [replace(one, key=f"k{number}") for number in range(7)]

    async def clients() -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()

        def us() -> int:
            return MONTH_END_US - 9 * 3600 * SECOND + round((loop.time() - start) * 1e6)

        limiter = LocalLimiter(lambda: us() * 1000, lambda: us() / 1e6)
        history, rejections = await crowd([limiter], identities, us, asyncio.sleep)
        history.check()
        account = Account("t", "k" if owner == "key" else "")
        assert now(limiter.use([account]))[0].open_requests == 0
        assert {error.owner for error in rejections} == {owner}
        # The limit was reached, so the check could have failed.
        _, entries = history.by_account()[account]
        used = [use(entries, entry.start) for entry in entries]
        asked = {name: most for name, most in ((name, getattr(limits, name)) for name in used[0]) if most is not None}
        assert any(max(one[name] for one in used) > 0.9 * most for name, most in asked.items())

    run_virtual(clients())
