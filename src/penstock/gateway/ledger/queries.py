"""Sums of usage records."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal, get_args

import msgspec

Group = Literal["day", "tenant", "key", "model"]
GROUPS: tuple[Group, ...] = get_args(Group)
DOLLARS = ("cost_usd", "cache_savings_usd")


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are summed, and by what. Times are Unix times: from `since`, before `until`."""

    since: float | None = None
    until: float | None = None
    group_by: tuple[Group, ...] = ()  # none: one sum over all
    only: dict[Group, str] = {}  # records with these values
    limit: int | None = None  # most sums


class UsageSum(msgspec.Struct, frozen=True):
    """The usage of one group."""

    COUNTS: ClassVar = ("requests", "input", "cached", "output", "drafted", "microusd", "saved_microusd")

    groups: dict[str, str]
    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    drafted: int = 0
    microusd: int = 0
    saved_microusd: int = 0
    seconds: float = 0.0  # the latencies of all requests

    def row(self, name_of: Callable[[str], str] = lambda key: "") -> dict[str, Any]:
        """As clients see it, with the names of keys beside their ids."""
        groups: dict[str, str] = {}
        for name, value in self.groups.items():
            groups |= {name: value, "key_name": name_of(value)} if name == "key" else {name: value}
        return {
            **groups,
            "requests": self.requests,
            "input_tokens": self.input,
            "cached_tokens": self.cached,
            "output_tokens": self.output,
            "drafted_tokens": self.drafted,
            "cost_usd": dollars(self.microusd),
            "cache_savings_usd": dollars(self.saved_microusd),
            "request_seconds": round(self.seconds, 3),
        }


def total(sums: Sequence[UsageSum]) -> UsageSum:
    counts = {name: sum(getattr(one, name) for one in sums) for name in UsageSum.COUNTS}
    return UsageSum({}, seconds=sum(one.seconds for one in sums), **counts)


def dollars(microusd: int) -> float:
    return microusd / 1e6


def to_csv(rows: Sequence[Mapping[str, Any]], group_by: Sequence[str]) -> str:
    """With a header, also without rows. Dollars have six decimals, so that none appears as 1e-06."""
    names = list(UsageSum({name: "" for name in GROUPS if name in group_by}).row())
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\r\n")
    writer.writerow(names)
    for row in rows:
        writer.writerow([f"{row[name]:.6f}" if name in DOLLARS else _harmless(row[name]) for name in names])
    return text.getvalue()


def _harmless(value: Any) -> Any:
    """A spreadsheet would take a text that begins so for a formula."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
