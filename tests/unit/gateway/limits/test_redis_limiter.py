"""The limiter of several servers, over a real Redis: together never over a limit, whoever dies or hangs."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings

from helpers.limit_history import MONTH_END_US, WINDOW_US, FakeClock, LimitHistory, use
from helpers.limiter_load import IDENTITIES, STEPS, Steps, play
from helpers.redis_server import RedisServer
from penstock.errors import BudgetExhausted, LimitsUnavailable, RateLimited
from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.account import Account, AccountUse
from penstock.gateway.limits.limiter import Settlement, Spend
from penstock.gateway.limits.period import Period
from penstock.gateway.limits.redis_limiter import RedisLimiter
from penstock.gateway.limits.redis_store import RedisStore
from penstock.gateway.limits.reservation import Charge, Reservation

pytestmark = pytest.mark.databases
T = TypeVar("T")
SECOND = 1_000_000
PATIENCE_S = 20.0  # the machine may be busy
KEY, TENANT = Account("t", "k"), Account("t")
WORKER = Path(__file__).parents[3] / "helpers" / "limiter_worker.py"


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with RedisServer(password="s3cret/:@") as server:
        yield server


@pytest.fixture(autouse=True)
def _empty(server: RedisServer) -> None:
    with server.client() as client:
        client.flushall()


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


def someone(key: Limits | None = None, tenant: Limits | None = None, name: str = "k") -> Identity:
    return Identity(tenant="t", key=name, key_limits=key or Limits(), tenant_limits=tenant or Limits())


def make(server: RedisServer, clock: FakeClock | None = None, **options: Any) -> RedisLimiter:
    """Without a heartbeat of its own: tests beat."""
    options = {"heartbeat_s": 1e6, "warm_up_s": 0, "timeout_s": PATIENCE_S, **options}
    return RedisLimiter(server.url, clock=None if clock is None else lambda: clock.us, **options)


@asynccontextmanager
async def started(*limiters: RedisLimiter, history: Any = None) -> Any:
    for limiter in limiters:
        await limiter.start(history)
    try:
        yield limiters
    finally:
        for limiter in limiters:
            await limiter.close()


async def rejected(limiter: RedisLimiter, identity: Identity, charge: Charge) -> RateLimited:
    with pytest.raises(RateLimited) as caught:
        await limiter.reserve(identity, "r", charge)
    return caught.value


def test_two_servers_together_are_never_over_and_let_in_what_fits(server: RedisServer, runner: asyncio.Runner) -> None:
    clock = FakeClock()
    limiters = [make(server, clock, lease_s=1e9), make(server, clock, lease_s=1e9)]

    @settings(max_examples=50)
    @given(STEPS)
    def check(steps: Steps) -> None:
        with server.client() as client:
            client.flushall()
        for limiter in limiters:
            limiter._open.clear()  # of an example that has failed
        clock.us = FakeClock().us
        runner.run(play(limiters, clock, steps)).check()

    check()
    for limiter in limiters:
        runner.run(limiter.close())


def test_retry_after_is_exact(server: RedisServer, runner: asyncio.Runner) -> None:
    clock = FakeClock(MONTH_END_US - 7 * 86_400 * SECOND)
    limiter = make(server, clock, lease_s=1e9)

    async def client(steps: Steps) -> None:
        for gap, _, number, tokens, microusd in steps:
            clock.us += gap
            identity, charge = IDENTITIES[number % len(IDENTITIES)], Charge(tokens, microusd)
            try:
                reservation = await limiter.reserve(identity, "r", charge)
            except RateLimited as error:
                clock.us += round((error.retry_after_s or 0) * 1e6) - 1
                await rejected(limiter, identity, charge)
                clock.us += 1
                reservation = await limiter.reserve(identity, "r", charge)
            await limiter.settle(reservation, charge)

    @settings(max_examples=30)
    @given(STEPS)
    def check(steps: Steps) -> None:
        with server.client() as redis:
            redis.flushall()
        clock.us = MONTH_END_US - 7 * 86_400 * SECOND
        runner.run(client(steps))

    check()
    runner.run(limiter.close())


def test_requests_leave_the_window_after_60_seconds_and_not_before(server: RedisServer, runner: asyncio.Runner) -> None:
    clock = FakeClock()
    identity = someone(Limits(requests_per_minute=2))

    async def check() -> None:
        async with started(make(server, clock, lease_s=1e9), make(server, clock, lease_s=1e9)) as (one, other):
            await one.reserve(identity, "r", Charge())
            clock.us += 20 * SECOND
            await other.settle(await other.reserve(identity, "r", Charge()), Charge())
            clock.us += 40 * SECOND - 1
            error = await rejected(one, identity, Charge())
            assert (error.limit, error.retry_after_s) == ("requests_per_minute", 1e-6)
            assert error.headers["x-ratelimit-reset-requests"] == "20.001s"
            clock.us += 1
            last = await one.reserve(identity, "r", Charge())
            assert (await rejected(other, identity, Charge())).retry_after_s == 20
            await one.settle(last, Charge(), never_began=True)
            await other.reserve(identity, "r", Charge())

    runner.run(check())


@pytest.mark.parametrize(
    "limits",
    [Limits(tokens_per_minute=2000), Limits(concurrent_requests=7), Limits(microusd_per_day=800)],
    ids=lambda limits: next(name for name in limits.__struct_fields__ if getattr(limits, name)),
)
@pytest.mark.parametrize("owner", ["key", "tenant"])
def test_500_requests_at_two_servers_never_exceed_a_limit(server: RedisServer, limits: Limits, owner: str) -> None:
    """Two processes, each with half of them, all at once."""
    job = json.dumps({"owner": owner, "limits": {name: getattr(limits, name) for name in limits.__struct_fields__}})
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), server.url, job, str(seed)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for seed in range(2)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
    for worker in workers:  # both have started
        assert worker.stdin is not None
        worker.stdin.write(b"go\n")
        worker.stdin.flush()
    history, rejections = LimitHistory(), 0
    for worker in workers:
        report = json.loads(worker.communicate()[0])
        assert worker.returncode == 0
        rejections += report["rejections"]
        for key, start, end, reserved, used in report["entries"]:
            identity = someone(limits, name=key) if owner == "key" else someone(tenant=limits, name=key)
            history.end(history.begin(identity, Charge(*reserved), start), Charge(*used), end)
    history.check()
    _, entries = history.by_account()[KEY if owner == "key" else TENANT]
    assert rejections
    assert len({entry.identity.key for entry in entries}) == (1 if owner == "key" else 7)
    (limit,) = [name for name in limits.__struct_fields__ if getattr(limits, name)]
    assert max(use(entries, entry.start)[limit] for entry in entries) > 0.7 * getattr(limits, limit)


def test_the_room_of_a_dead_server_is_free_after_its_lease(server: RedisServer, runner: asyncio.Runner) -> None:
    """Its requests are over, but may have used their tokens until then."""
    clock = FakeClock()
    identity = someone(Limits(concurrent_requests=1, tokens_per_minute=100, microusd_per_day=10))

    async def check() -> None:
        dead = make(server, clock, lease_s=10)
        async with started(dead), started(make(server, clock, lease_s=1000)) as (living,):
            await dead.reserve(identity, "r", Charge(60, 10))
            clock.us += 10 * SECOND - 1
            assert (await rejected(living, identity, Charge(10, 1))).limit == "concurrent_requests"
            clock.us += 1
            error = await rejected(living, identity, Charge(41, 1))
            assert (error.limit, error.retry_after_s) == ("tokens_per_minute", 60)
            await living.settle(await living.reserve(identity, "r", Charge(40, 10)), Charge())
            clock.us += WINDOW_US
            await living.reserve(identity, "r", Charge(100, 10))

    runner.run(check())


def test_a_renewed_lease_keeps_the_room(server: RedisServer, runner: asyncio.Runner) -> None:
    clock = FakeClock()
    identity = someone(Limits(concurrent_requests=1))

    async def check() -> None:
        async with started(make(server, clock, lease_s=10), make(server, clock, lease_s=10)) as (one, other):
            reservation = await one.reserve(identity, "r", Charge(60, 10))
            for _ in range(20):
                clock.us += 5 * SECOND
                await one._beat()
                await rejected(other, identity, Charge())
            await one.settle(reservation, Charge())
            await other.reserve(identity, "r", Charge())

    runner.run(check())


def test_a_server_that_was_cut_off_registers_its_open_requests_again(
    server: RedisServer, runner: asyncio.Runner
) -> None:
    clock = FakeClock()
    identity = someone(Limits(concurrent_requests=2))

    async def check() -> None:
        async with started(make(server, clock, lease_s=10), make(server, clock, lease_s=10)) as (cut_off, other):
            first = await cut_off.reserve(identity, "r", Charge(60))
            clock.us += 5 * SECOND
            await other._beat()
            clock.us += 9 * SECOND
            await other._beat()
            assert [one.open_requests for one in await other.use([KEY, TENANT])] == [0, 0]
            await cut_off.reserve(identity, "r", Charge())  # renews the lease first
            assert [one.open_requests for one in await other.use([KEY, TENANT])] == [2, 2]
            await cut_off.settle(first, Charge())
            assert [one.reserved_tokens for one in await other.use([KEY, TENANT])] == [0, 0]

    runner.run(check())


def test_a_redis_that_lost_its_data_admits_nothing_until_all_servers_had_time_to_register(
    server: RedisServer, runner: asyncio.Runner
) -> None:
    clock = FakeClock()
    identity = someone(Limits(concurrent_requests=1))

    async def check() -> None:
        limiters = [make(server, clock, lease_s=10, warm_up_s=3) for _ in range(2)]
        async with started(*limiters) as (one, other):
            clock.us += 3 * SECOND
            await one.reserve(identity, "r", Charge())
            with server.client() as client:
                client.flushall()
            await other._beat()
            clock.us += 3 * SECOND - 1
            limits = [identity.key_limits, identity.tenant_limits]
            asked = Reservation("x", "r", "t", "k", Charge())
            reply = await other._store.reserve(asked, limits, warm_up_us=3 * SECOND, from_ledger=False)
            assert (reply.outcome, reply.details) == ("warming", [[1]])
            await one._beat()
            clock.us += 1
            await rejected(other, identity, Charge())

    runner.run(check())


def test_scripts_may_be_repeated_and_come_in_any_order(server: RedisServer, runner: asyncio.Runner) -> None:
    """As after a connection that breaks before its reply."""

    async def check() -> None:
        limiter = make(server)
        async with started(limiter):
            store, limits = limiter._store, [Limits(), Limits()]

            async def reserve(id: str) -> Reservation:
                reservation = Reservation(id, "r", "t", "k", Charge(10, 5))
                for _ in range(2):
                    reply = await store.reserve(reservation, limits, warm_up_us=0, from_ledger=False)
                    assert reply.outcome == "reserved"
                await store.register(reservation)
                return reservation

            first = await reserve("1")
            assert await limiter.use([KEY]) == [
                AccountUse(requests=1, reserved_tokens=10, open_requests=1, reserved_microusd=5)
            ]
            for _ in range(2):
                await store.settle(first, Charge(7, 3))
            await store.register(first)
            after = [AccountUse(requests=1, settled_tokens=7, settled_microusd_day=3, settled_microusd_month=3)]
            assert await limiter.use([KEY]) == after
            # Given up before it has arrived:
            late = Reservation("2", "r", "t", "k", Charge(10, 5))
            await store.settle(late, Charge(), never_began=True)
            reply = await store.reserve(late, limits, warm_up_us=0, from_ledger=False)
            assert reply.outcome == "abandoned"
            # Given up after it has arrived:
            await store.settle(await reserve("3"), Charge(), never_began=True)
            assert await limiter.use([KEY]) == after

    runner.run(check())


def test_without_redis_requests_are_rejected_and_settled_when_it_is_back(runner: asyncio.Runner) -> None:
    identity = someone(Limits(tokens_per_minute=100))

    async def check(server: RedisServer) -> None:
        async with started(make(server)) as (limiter,):
            reservation = await limiter.reserve(identity, "r", Charge(60, 5))
            server.stop()
            with pytest.raises(LimitsUnavailable) as caught:
                await limiter.reserve(identity, "r", Charge(1))
            assert caught.value.retry_after_s
            assert not limiter.available
            await limiter.settle(reservation, Charge(30, 2))
            with pytest.raises(LimitsUnavailable):
                await limiter.use([KEY])
            server.start()
            await limiter._beat()
            assert limiter.available
            assert await limiter.use([KEY]) == [
                AccountUse(settled_tokens=30, settled_microusd_day=2, settled_microusd_month=2)
            ]
            assert (await rejected(limiter, identity, Charge(71))).limit == "tokens_per_minute"

    with RedisServer() as server:
        runner.run(check(server))


def test_a_redis_that_hangs_holds_nothing_up_and_leaks_nothing(runner: asyncio.Runner) -> None:
    identity = someone(Limits(concurrent_requests=1))

    async def check(server: RedisServer) -> None:
        assert server.process is not None
        async with started(make(server)) as (limiter,):
            await limiter.settle(await limiter.reserve(identity, "r", Charge()), Charge())
            server.process.send_signal(signal.SIGSTOP)
            limiter._store._timeout_s = 0.3
            with pytest.raises(LimitsUnavailable):
                await asyncio.wait_for(limiter.reserve(identity, "r", Charge(7)), PATIENCE_S)
            server.process.send_signal(signal.SIGCONT)
            limiter._store._timeout_s = PATIENCE_S
            while not limiter.available or limiter._unsent:  # it may need a moment to wake up
                await limiter._beat()
            assert (await limiter.use([KEY]))[0].open_requests == 0
            await limiter.reserve(identity, "r", Charge())

    with RedisServer() as server:
        runner.run(check(server))


def test_a_client_that_leaves_while_its_request_is_reserved_leaves_nothing_behind(
    server: RedisServer, runner: asyncio.Runner
) -> None:
    identity = someone(Limits(concurrent_requests=1))

    async def check() -> None:
        async with started(make(server)) as (limiter,):
            for turns in range(12):
                task = asyncio.create_task(limiter.reserve(identity, "r", Charge(9)))
                for _ in range(turns):
                    await asyncio.sleep(0)
                task.cancel()
                (reservation,) = await asyncio.gather(task, return_exceptions=True)
                if isinstance(reservation, Reservation):
                    await limiter.settle(reservation, Charge())
                await limiter._beat()
                assert (await limiter.use([KEY]))[0].open_requests == 0

    runner.run(check())


def test_open_means_that_each_server_counts_alone(runner: asyncio.Runner) -> None:
    identity = someone(Limits(tokens_per_minute=100))

    async def check(server: RedisServer) -> None:
        limiter = make(server, unavailable="open")
        server.stop()
        async with started(limiter):
            reservation = await limiter.reserve(identity, "r", Charge(60, 9))
            assert limiter.headers(reservation)["x-ratelimit-remaining-tokens"] == "40"
            await rejected(limiter, identity, Charge(41))
            await limiter.settle(reservation, Charge(50, 7))
            await limiter.settle(reservation, Charge(50, 7))
            server.start()
            await limiter._beat()
            assert (limiter.available, limiter.counts.unchecked) == (True, 1)
            assert await limiter.use([KEY]) == [
                AccountUse(settled_tokens=50, settled_microusd_day=7, settled_microusd_month=7)
            ]

    with RedisServer() as server:
        runner.run(check(server))


@dataclass
class History:
    settlements: list[Settlement] = field(default_factory=list)
    spends: list[Spend] = field(default_factory=list)
    reads: int = 0
    broken: bool = False

    async def settled_since(self, time: float, account: Account | None = None) -> Iterable[Settlement]:
        return [one for one in self.settlements if one.time >= time and account in (KEY, TENANT)]

    async def spend(self, now: float, account: Account | None = None) -> Iterable[Spend]:
        self.reads += 1
        if self.broken:
            raise OSError("no database")
        await asyncio.sleep(0)
        return [one for one in self.spends if (one.tenant, one.key) == account]


def test_what_redis_does_not_know_comes_from_the_ledger(server: RedisServer, runner: asyncio.Runner) -> None:
    clock = FakeClock(MONTH_END_US - 3600 * SECOND)
    limits = Limits(requests_per_minute=3, tokens_per_minute=100, microusd_per_day=10)
    identity = someone(limits, limits)
    history = History([Settlement(clock.time() - 20, "t", "k", 80)], [Spend("t", "k", 4, 10), Spend("t", "", 5, 19)])

    async def check() -> None:
        asked = asyncio.Semaphore(0)  # a request that learned late that Redis knows nothing would read once more
        async with started(make(server, clock, lease_s=10), history=history) as (limiter,):
            seed, spend = limiter._seed, history.spend

            async def counting_seed(account: Account, now_us: int) -> None:
                asked.release()
                await seed(account, now_us)

            async def spend_once_all_have_asked(now: float, account: Account | None = None) -> Iterable[Spend]:
                for _ in range(5):  # of this account; the other's reader takes as many
                    await asked.acquire()
                return await spend(now, account)

            limiter._seed, history.spend = counting_seed, spend_once_all_have_asked  # type: ignore[method-assign]
            errors = await asyncio.gather(*(rejected(limiter, identity, Charge(21, 0)) for _ in range(5)))
            assert {error.limit for error in errors} == {"tokens_per_minute"}
            assert history.reads == 2  # once per account
            assert isinstance(await rejected(limiter, identity, Charge(0, 6)), BudgetExhausted)
            await limiter.reserve(identity, "r", Charge(0, 5))
            assert await limiter.use([KEY, TENANT]) == [
                AccountUse(requests=2, settled_tokens=80, open_requests=1, settled_microusd_day=day,
                           settled_microusd_month=month, reserved_microusd=5)
                for day, month in ((4, 10), (5, 19))
            ]  # fmt: skip

    runner.run(check())


def test_a_late_reader_of_the_ledger_does_not_count_open_requests_twice(
    server: RedisServer, runner: asyncio.Runner
) -> None:
    """Usage is recorded before it is settled: the ledger knows requests that are still open in Redis."""
    clock = FakeClock(MONTH_END_US - 3600 * SECOND)
    history = History()

    async def check() -> None:
        async with started(make(server, clock, lease_s=10), history=history) as (limiter,):
            reservation = await limiter.reserve(someone(Limits(microusd_per_day=10)), "r", Charge(0, 4))
            history.spends = [Spend("t", "k", 4, 4)]
            await limiter._seed(KEY, clock.us)
            (use,) = await limiter.use([KEY])
            assert (use.settled_microusd_day, use.reserved_microusd) == (0, 4)
            await limiter.settle(reservation, Charge(0, 4))
            (use,) = await limiter.use([KEY])
            assert (use.settled_microusd_day, use.reserved_microusd) == (4, 0)

    runner.run(check())


def test_what_a_dead_server_has_recorded_and_not_settled_is_read_again(
    server: RedisServer, runner: asyncio.Runner
) -> None:
    clock = FakeClock(MONTH_END_US - 3600 * SECOND)
    identity = someone(Limits(microusd_per_day=10))
    history = History()

    async def check() -> None:
        dead = make(server, clock, lease_s=10)
        async with (
            started(dead, history=history),
            started(make(server, clock, lease_s=1e6), history=history) as (living,),
        ):
            await dead.reserve(identity, "r", Charge(0, 6))
            history.spends = [Spend("t", "k", 6, 6), Spend("t", "", 6, 6)]
            clock.us += 11 * SECOND
            assert isinstance(await rejected(living, identity, Charge(0, 5)), BudgetExhausted)
            await living.reserve(identity, "r", Charge(0, 4))

    runner.run(check())


def test_without_the_ledger_limits_are_unavailable(server: RedisServer, runner: asyncio.Runner) -> None:
    history = History(broken=True)

    async def check() -> None:
        async with started(make(server), history=history) as (limiter,):
            with pytest.raises(LimitsUnavailable):
                await limiter.reserve(someone(), "r", Charge())
            history.broken = False
            await limiter.reserve(someone(), "r", Charge())

    runner.run(check())


def test_days_and_months_are_those_of_python(server: RedisServer, runner: asyncio.Runner) -> None:
    clock = FakeClock()

    async def check() -> None:
        store = RedisStore(server.url, "s", clock=lambda: clock.us)
        with server.client() as client:
            for day in range(19_000, 60_000, 97):
                clock.us = day * 86_400 * SECOND
                await store.settle(Reservation(str(day), "r", "t", "", Charge()), Charge())
                period = Period.at(clock.time())
                found = client.hmget("penstock:limits:tenant:t", "day", "month")
                assert [int(one) for one in found] == [period.day, period.month]
        await store.close()

    runner.run(check())


def test_the_password_is_neither_logged_nor_in_errors(
    server: RedisServer, runner: asyncio.Runner, caplog: pytest.LogCaptureFixture
) -> None:
    async def check(url: str) -> None:
        limiter = RedisLimiter(url, timeout_s=PATIENCE_S, warm_up_s=0)
        async with started(limiter):
            with pytest.raises(LimitsUnavailable) as caught:
                await limiter.reserve(someone(), "r", Charge())
            assert "wrong" not in caught.value.message

    with caplog.at_level(logging.DEBUG):
        runner.run(check(f"redis://:wrong-s3cret@127.0.0.1:{server.port}/0"))
        runner.run(check("redis://user:wrong-s3cret@127.0.0.1:1/0"))
    assert "does not answer" in caplog.text
    assert "wrong" not in caplog.text
