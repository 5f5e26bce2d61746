"""Usage records, and a database for them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from penstock.database.database import Database, open_database
from penstock.gateway.ledger.record import UsageRecord

NOON = 1_794_484_800.0  # 2026-11-12, 12:00 UTC


def record(request: str, **fields: Any) -> UsageRecord:
    values: dict[str, Any] = {
        "t": NOON, "tenant": "acme", "key": "k1", "model": "m", "replica": 0, "input": 10, "cached": 4, "output": 5,
        "latency_s": 0.5, "ttft_s": 0.1, "microusd": 7, "saved_microusd": 2, "finish": "end",
    }  # fmt: skip
    return UsageRecord(request=request, **{**values, **fields})


def usage_database(folder: Path) -> Database:
    return open_database(f"sqlite:///{folder / 'usage.db'}")


class RememberingStore:
    """A UsageStore whose database a test takes away."""

    def __init__(self) -> None:
        self.records: dict[str, UsageRecord] = {}
        self.groups: list[int] = []  # records of each commit
        self.away: Exception | None = None
        self.failing = 0  # commits that fail, one after the other

    def add(self, records: Sequence[UsageRecord]) -> None:
        self.check()
        self.groups.append(len(records))
        for one in records:
            self.records.setdefault(one.request, one)

    def check(self) -> None:
        if self.failing:
            self.failing -= 1
            raise OSError("the connection was closed")
        if self.away is not None:
            raise self.away

    def close(self) -> None: ...
