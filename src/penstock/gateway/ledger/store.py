"""Usage records in a database. Each method is one transaction; all of them block, so they are called in a thread."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from sqlalchemy import PoolProxiedConnection, Select, case, func, select
from sqlalchemy.dialects import postgresql, sqlite

from penstock.database.database import POSTGRESQL, SQLITE, Database
from penstock.gateway.ledger.queries import GROUPS, Group, UsageQuery, UsageSum
from penstock.gateway.ledger.record import UsageRecord
from penstock.gateway.ledger.tables import usage
from penstock.gateway.limits.account import Account
from penstock.gateway.limits.limiter import Settlement, Spend

columns = usage.c
CHECK_BYTES = 1 << 16  # of the record that a check writes: more than a commit of a busy server has


class UsageStore:
    def __init__(self, database: Database) -> None:
        self._database = database
        dialect: Any = postgresql if database.kind == POSTGRESQL else sqlite
        insert = dialect.insert(usage).on_conflict_do_nothing(index_elements=["request"])
        # Compiled once, and executed by the driver: SQLAlchemy's way of executing costs more than the insertion.
        compiled = insert.compile(dialect=database.engine.dialect)
        self._insert = str(compiled)
        self._order: Sequence[str] | None = compiled.positiontup if compiled.positional else None
        self._writing: PoolProxiedConnection | None = None  # the driver's, kept open between commits, for one thread

    def add(self, records: Sequence[UsageRecord]) -> None:
        """All of them or none. One that is there already stays as it is: a retry after a commit whose outcome is not
        known writes nothing twice. Always called in the same thread."""
        rows: list[Any] = [_row(record) for record in records]
        if self._order is not None:
            rows = [tuple([row[name] for name in self._order]) for row in rows]
        if self._writing is None:
            self._writing = self._database.engine.raw_connection()
        connection = self._writing
        try:
            cursor = connection.cursor()
            if self._database.kind == SQLITE:  # PostgreSQL's driver begins by itself
                cursor.execute("BEGIN IMMEDIATE")
            cursor.executemany(self._insert, rows)
            connection.commit()
            cursor.close()
        except Exception:
            self._writing = None
            connection.invalidate()
            connection.close()
            raise

    def check(self) -> None:
        """Raises if the database cannot be reached, or has no room for a record: writes one and takes it back."""
        large = UsageRecord(
            request=f"check-{uuid.uuid4()}", t=0.0, tenant="", key="", model="x" * CHECK_BYTES, replica=0, input=0,
            cached=0, output=0, latency_s=0.0, ttft_s=None, microusd=0, finish="error",
        )  # fmt: skip
        with self._database.write() as connection:
            connection.execute(usage.insert(), [_row(large)])
            connection.execute(usage.delete().where(columns.request == large.request))

    def close(self) -> None:
        """In the thread of `add`."""
        if self._writing is not None:
            self._writing.close()
            self._writing = None

    def settled_since(self, t: float, account: Account | None = None) -> list[Settlement]:
        """Oldest first."""
        query = select(columns.t, columns.tenant, columns.key, columns.input + columns.output)
        query = _of_account(query, account).where(columns.t >= t).order_by(columns.t)
        with self._database.read() as connection:
            return [Settlement(*row) for row in connection.execute(query)]

    def spend(self, now: float, account: Account | None = None) -> list[Spend]:
        """On the UTC day and in the month of `now`: of each key, and of each tenant with the key ""."""
        today = datetime.fromtimestamp(now, UTC).date()
        this_day = func.sum(case((columns.day == today.isoformat(), columns.microusd), else_=0))
        since = today.replace(day=1).isoformat()
        found: list[Spend] = []
        with self._database.read() as connection:
            for by in ([columns.tenant, columns.key], [columns.tenant]):
                if account is not None and bool(account.key) != (len(by) == 2):
                    continue
                query = _of_account(select(*by, this_day, func.sum(columns.microusd)).group_by(*by), account)
                rows = connection.execute(query.where(columns.day >= since, columns.day <= today.isoformat()))
                for tenant, *keys, day, month in rows:
                    if keys != [""]:  # a server without keys has tenants only
                        found.append(Spend(tenant, keys[0] if keys else "", int(day), int(month)))
        return found

    def spend_by_minute(self, since: float) -> list[tuple[int, str, int]]:
        """Minutes since 1970, tenants and micro-dollars."""
        minute = func.floor(columns.t / 60)
        query = select(minute, columns.tenant, func.sum(columns.microusd)).group_by(minute, columns.tenant)
        with self._database.read() as connection:
            rows = connection.execute(query.where(columns.t >= since, columns.microusd > 0))
            return [(int(at), tenant, int(cost)) for at, tenant, cost in rows]

    def sums(self, query: UsageQuery) -> list[UsageSum]:
        """One per group, in the order of their names."""
        by = [columns[group] for group in query.group_by]
        found = _between(select(*by, *_SUMS), query.since, query.until)
        for group, value in query.only.items():
            found = found.where(columns[group] == value)
        if by:
            found = found.group_by(*by).order_by(*by).limit(query.limit)
        with self._database.read() as connection:
            rows = connection.execute(found).mappings().all()
        return [_sum(row, query.group_by) for row in rows if row["requests"]]


def _row(record: UsageRecord) -> dict[str, Any]:
    return {**msgspec.structs.asdict(record), "day": utc_day(record.t)}


def utc_day(t: float) -> str:
    return datetime.fromtimestamp(t, UTC).date().isoformat()


_SUMS = (
    func.count().label("requests"),
    *(func.sum(columns[name]).label(name) for name in ("input", "cached", "output", "drafted")),
    *(func.sum(columns[name]).label(name) for name in ("microusd", "saved_microusd")),
    func.sum(columns.latency_s).label("seconds"),
)


def _between(query: Select[Any], since: float | None, until: float | None) -> Select[Any]:
    if since is not None:
        query = query.where(columns.t >= since)
    return query if until is None else query.where(columns.t < until)


def _of_account(query: Select[Any], account: Account | None) -> Select[Any]:
    if account is None:
        return query
    query = query.where(columns.tenant == account.tenant)
    return query.where(columns.key == account.key) if account.key else query


def _sum(row: Any, group_by: Sequence[Group]) -> UsageSum:
    groups: dict[str, str] = {name: row[name] for name in GROUPS if name in group_by}
    counts = {name: int(row[name]) for name in UsageSum.COUNTS}
    return UsageSum(groups, seconds=float(row["seconds"]), **counts)
