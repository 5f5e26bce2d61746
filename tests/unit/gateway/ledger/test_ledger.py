"""Records are committed in groups; a database that is away is told, and comes back."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from helpers.usage_records import RememberingStore, record
from penstock.errors import LedgerUnavailable
from penstock.gateway.ledger import ledger as module
from penstock.gateway.ledger.ledger import Ledger
from penstock.gateway.ledger.record import UsageRecord


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.0)


class SlowStore(RememberingStore):
    """The first commit waits for `go`."""

    def __init__(self) -> None:
        super().__init__()
        self.go, self.begun = threading.Event(), threading.Event()

    def add(self, records: Sequence[UsageRecord]) -> None:
        self.begun.set()
        assert self.go.wait(60)
        super().add(records)


def made(store: Any) -> Ledger:
    return Ledger(store)


def test_records_that_come_during_a_commit_share_the_next_one() -> None:
    async def main() -> None:
        store = SlowStore()
        ledger = made(store)
        first = asyncio.create_task(ledger.write(record("first")))
        await asyncio.to_thread(store.begun.wait, 60)
        others = [asyncio.create_task(ledger.write(record(f"r{number}"))) for number in range(100)]
        await asyncio.sleep(0)
        assert not first.done()
        assert not any(task.done() for task in others)
        store.go.set()
        await asyncio.gather(first, *others)
        assert store.groups == [1, 100]
        assert (ledger.commits, ledger.records, ledger.backlog) == (2, 101, 0)
        await ledger.close()

    asyncio.run(main())


def test_a_writer_that_is_cancelled_takes_nothing_from_the_others() -> None:
    async def main() -> None:
        store = SlowStore()
        ledger = made(store)
        tasks = [asyncio.create_task(ledger.write(record(name))) for name in "ab"]
        await asyncio.to_thread(store.begun.wait, 60)
        tasks[0].cancel()
        store.go.set()
        await tasks[1]
        assert set(store.records) == {"a", "b"}
        await ledger.close()

    asyncio.run(main())


def test_a_connection_that_was_closed_is_tried_again() -> None:
    async def main() -> None:
        store = RememberingStore()
        store.failing = 1
        ledger = made(store)
        await ledger.write(record("a"))
        assert (ledger.available, ledger.failures) == (True, 0)
        await ledger.close()

    asyncio.run(main())


def test_a_database_that_is_away() -> None:
    async def main() -> None:
        store = RememberingStore()
        store.away = OSError("disk full")
        ledger = made(store)
        with pytest.raises(LedgerUnavailable):
            await ledger.write(record("refused"))
        assert not ledger.available
        ledger.keep(record("kept"))
        store.away = None
        while ledger.backlog or not ledger.available:
            await asyncio.sleep(0.001)
        assert set(store.records) == {"kept"}
        await ledger.write(record("next"))
        await ledger.close()
        assert set(store.records) == {"kept", "next"}

    asyncio.run(main())


def test_the_backlog_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BACKLOG", 3)
    monkeypatch.setattr(module, "CLOSING_S", 0.01)

    async def main() -> None:
        store = RememberingStore()
        store.away = OSError("gone")
        ledger = made(store)
        for number in range(5):
            ledger.keep(record(f"r{number}"))
        assert ledger.dropped == 2
        await ledger.close()
        assert ledger.dropped == 5

    asyncio.run(main())


def test_closing_writes_what_is_left() -> None:
    async def main() -> None:
        store = RememberingStore()
        ledger = made(store)
        for number in range(2000):
            ledger.keep(record(f"r{number}"))
        await ledger.close()
        assert len(store.records) == 2000

    asyncio.run(main())
