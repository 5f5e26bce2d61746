"""What was reserved and settled when, and a plain check of every 60-second window, UTC day and month against limits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import msgspec

from penstock.gateway.keys.identity import Identity, Limits
from penstock.gateway.limits.account import Account, accounts_of
from penstock.gateway.limits.reservation import Charge

WINDOW_US = 60_000_000
MONTH_END_US = int(datetime(2026, 12, 1, tzinfo=UTC).timestamp()) * 1_000_000


class FakeClock:
    """Starts two minutes before the end of a day and a month."""

    def __init__(self, us: int = MONTH_END_US - 2 * WINDOW_US) -> None:
        self.us = us

    def monotonic_ns(self) -> int:
        return self.us * 1000

    def time(self) -> float:
        return self.us / 1e6


@dataclass
class Entry:
    identity: Identity
    reserved: Charge
    start: int
    end: int | None = None  # None: open
    used: Charge = field(default_factory=Charge)


class LimitHistory:
    def __init__(self) -> None:
        self.entries: list[Entry] = []

    def begin(self, identity: Identity, charge: Charge, at: int) -> Entry:
        self.entries.append(Entry(identity, charge, at))
        return self.entries[-1]

    @staticmethod
    def end(entry: Entry, used: Charge, at: int) -> None:
        entry.end, entry.used = at, used

    def by_account(self) -> dict[Account, tuple[Limits, list[Entry]]]:
        found: dict[Account, list[Entry]] = defaultdict(list)
        limits = {}
        for entry in self.entries:
            who = entry.identity
            for account in accounts_of(who.tenant, who.key):
                found[account].append(entry)
                limits[account] = who.key_limits if account.key else who.tenant_limits
        return {account: (limits[account], entries) for account, entries in found.items()}

    def check(self) -> None:
        """Every window of 60 seconds, every day and month, at every instant."""
        for account, (limits, entries) in self.by_account().items():
            for limit, most in msgspec.structs.asdict(limits).items():
                if most is not None:
                    peak, at = highest(change for entry in entries for change in CHANGES[limit](entry))
                    assert peak <= most, f"{account} has {peak} of {limit} {most} at {at}"

    def fits(self, identity: Identity, charge: Charge, at: int) -> bool:
        """Whether a request fits into what is in use at `at`, with everything so far."""
        accounts = self.by_account()
        for account in accounts_of(identity.tenant, identity.key):
            limits = identity.key_limits if account.key else identity.tenant_limits
            entries = [*accounts.get(account, (limits, []))[1], Entry(identity, charge, at)]
            if over_limit(limits, use(entries, at)):
                return False
        return True


def highest(changes: Iterable[tuple[int, int]]) -> tuple[int, int]:
    """The highest sum of changes, and the instant at which it is reached."""
    by_time: dict[int, int] = defaultdict(int)
    for at, change in changes:
        by_time[at] += change
    sums = zip(accumulate(by_time[at] for at in sorted(by_time)), sorted(by_time), strict=True)
    return max(sums, default=(0, 0))


def tokens(entry: Entry) -> list[tuple[int, int]]:
    """When they count: from the reservation until 60 seconds after the settlement."""
    begins = (entry.start, entry.reserved.tokens)
    if entry.end is None:
        return [begins]
    used = entry.used.tokens
    return [begins, (entry.end, used - entry.reserved.tokens), (entry.end + WINDOW_US, -used)]


def money(entry: Entry, period: Callable[[datetime], datetime]) -> list[tuple[int, int]]:
    """When it counts: from the reservation until the end of the period of the settlement."""
    begins = (entry.start, entry.reserved.microusd)
    if entry.end is None:
        return [begins]
    used, ends = entry.used.microusd, period(_date(entry))
    return [begins, (entry.end, used - entry.reserved.microusd), (round(ends.timestamp()) * 1_000_000, -used)]


def next_day(at: datetime) -> datetime:
    return at.replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)


def next_month(at: datetime) -> datetime:
    return next_day((at.replace(day=1) + timedelta(days=31)).replace(day=1)) - timedelta(days=1)


CHANGES: dict[str, Callable[[Entry], list[tuple[int, int]]]] = {
    "requests_per_minute": lambda entry: [(entry.start, 1), (entry.start + WINDOW_US, -1)],
    "tokens_per_minute": tokens,
    "concurrent_requests": lambda entry: [(entry.start, 1), *([] if entry.end is None else [(entry.end, -1)])],
    "microusd_per_day": lambda entry: money(entry, next_day),
    "microusd_per_month": lambda entry: money(entry, next_month),
}


def use(entries: list[Entry], at: int) -> dict[str, int]:
    """What counts against each limit in the window that ends at `at`. A request that was open at any time in it may
    have spent all of its tokens in it."""
    begun = [entry for entry in entries if entry.start <= at]
    open_ = [entry for entry in begun if entry.end is None or entry.end > at]
    ended = [entry for entry in begun if entry.end is not None and entry.end <= at]
    now = datetime.fromtimestamp(at // 1_000_000, UTC)
    month = [entry for entry in ended if _date(entry).timetuple()[:2] == now.timetuple()[:2]]
    reserved = sum(entry.reserved.microusd for entry in open_)
    return {
        "requests_per_minute": sum(at - entry.start < WINDOW_US for entry in begun),
        "tokens_per_minute": sum(entry.reserved.tokens for entry in open_)
        + sum(entry.used.tokens for entry in ended if at - (entry.end or 0) < WINDOW_US),
        "concurrent_requests": len(open_),
        "microusd_per_day": reserved + sum(entry.used.microusd for entry in month if _date(entry).date() == now.date()),
        "microusd_per_month": reserved + sum(entry.used.microusd for entry in month),
    }


def over_limit(limits: Limits, used: dict[str, int]) -> list[str]:
    return [
        name
        for name, most in ((name, getattr(limits, name)) for name in used)
        if most is not None and used[name] > most
    ]


def _date(entry: Entry) -> datetime:
    return datetime.fromtimestamp((entry.end or 0) // 1_000_000, UTC)
