"""The ledger over PostgreSQL: the same sums, and a server that goes away and comes back."""

from __future__ import annotations

import asyncio

import pytest

from helpers.postgresql import PostgresServer
from helpers.usage_records import NOON, record
from penstock.database.database import open_database
from penstock.errors import LedgerUnavailable
from penstock.gateway.ledger import ledger as module
from penstock.gateway.ledger.ledger import Ledger
from penstock.gateway.ledger.queries import UsageQuery
from penstock.gateway.ledger.store import UsageStore
from penstock.gateway.limits.limiter import Settlement, Spend

pytestmark = pytest.mark.databases


def test_the_ledger_over_postgresql(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PROBE_S", 0.01)

    async def main() -> None:
        database = open_database(postgres_server.url("ledger"))
        ledger = Ledger(UsageStore(database))
        await asyncio.gather(*(ledger.write(record(f"r{number}")) for number in range(200)))
        await ledger.write(record("r7", output=99))  # again
        assert ledger.commits < 200
        (found,) = await ledger.sums(UsageQuery(group_by=("tenant",)))
        assert (found.requests, found.output, found.microusd) == (200, 1000, 1400)
        assert await ledger.spend(NOON) == [Spend("acme", "k1", 1400, 1400), Spend("acme", "", 1400, 1400)]
        assert await ledger.spend_by_minute(NOON) == [(int(NOON // 60), "acme", 1400)]
        assert (await ledger.settled_since(NOON))[0] == Settlement(NOON, "acme", "k1", 15)
        postgres_server.stop()
        with pytest.raises(LedgerUnavailable):
            await ledger.write(record("lost"))
        ledger.keep(record("kept"))
        postgres_server.start()
        while not ledger.available or ledger.backlog:
            await asyncio.sleep(0.01)
        (found,) = await ledger.sums(UsageQuery())
        assert found.requests == 201
        await ledger.close()
        database.close()

    asyncio.run(main())
