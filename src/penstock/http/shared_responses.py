"""Stored responses and chat completions in the database, where all servers that use it find them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Connection, and_, delete, func, insert, select, text, update

from penstock.database.database import POSTGRESQL, Database
from penstock.database.threads import DatabaseThreads
from penstock.errors import StorageUnavailable
from penstock.http.response_store import MAX_BYTES, MAX_RESPONSES, StoredResponse, not_found
from penstock.http.response_tables import stored_responses

LIFETIME_S = 30 * 86_400.0  # since it was stored; memory forgets when its server stops, a database does not
EVICTION_LOCK = 0x72657370  # of PostgreSQL's advisory lock: servers evict one after the other

columns = stored_responses.c
FIELDS = StoredResponse.__struct_fields__
Answer = TypeVar("Answer")


class SharedResponseStore:
    """A ResponseStore. Its bounds hold for all servers together, at the latest when the last of concurrent `put`s has
    returned. Belongs to one event loop; queries run in threads."""

    def __init__(
        self,
        database: Database,
        threads: DatabaseThreads,
        *,
        what: str = "response",
        max_responses: int = MAX_RESPONSES,
        max_bytes: int = MAX_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.what = what
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self._database = database
        self._threads = threads
        self._clock = clock
        self._available = True  # whether the last call went through

    async def check(self) -> None:
        """While the database is away, a request that could not be stored costs no model time."""
        if not self._available:
            await self._run(self._ping)

    async def put(self, tenant: str, name: str, response: StoredResponse) -> None:
        await self._run(self._put, tenant, name, response)

    async def get(self, tenant: str, name: str, *, param: str = "response_id") -> StoredResponse:
        found = await self._run(self._get, tenant, name) if _storable(name) else None
        if found is None:
            raise not_found(self.what, name, param)
        return found

    async def bodies(self, tenant: str) -> list[bytes]:
        return await self._run(self._bodies, tenant)

    async def replace(self, tenant: str, name: str, response: StoredResponse) -> None:
        if not await self._run(self._replace, tenant, name, response):
            raise not_found(self.what, name, "response_id")

    async def delete(self, tenant: str, name: str, *, param: str = "response_id") -> None:
        if not (_storable(name) and await self._run(self._delete, tenant, name)):
            raise not_found(self.what, name, param)

    async def _run(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        try:
            answer = await self._threads.run(call, *arguments)
        except StorageUnavailable:
            self._available = False
            raise
        self._available = True
        return answer

    # --- in a thread

    def _ping(self) -> None:
        with self._database.read() as connection:
            connection.execute(text("SELECT 1"))

    def _put(self, tenant: str, name: str, response: StoredResponse) -> None:
        now = self._clock()
        row = {"what": self.what, "tenant": tenant, "id": name, "created": now, "used": now, **_values(response)}
        with self._database.write() as connection:
            connection.execute(insert(stored_responses).values(row))
        self._make_room()

    def _get(self, tenant: str, name: str) -> StoredResponse | None:
        now = self._clock()
        found = and_(self._of(tenant, name), columns.created >= now - LIFETIME_S)
        read = update(stored_responses).where(found).values(used=now).returning(*(columns[field] for field in FIELDS))
        with self._database.write() as connection:
            row = connection.execute(read).one_or_none()
        return None if row is None else StoredResponse(*map(bytes, row))

    def _bodies(self, tenant: str) -> list[bytes]:
        own = select(columns.body).where(columns.what == self.what, columns.tenant == tenant)
        with self._database.read() as connection:
            rows = connection.scalars(own.where(columns.created >= self._clock() - LIFETIME_S).order_by(columns.used))
            return [bytes(body) for body in rows]

    def _replace(self, tenant: str, name: str, response: StoredResponse) -> bool:
        values = {**_values(response), "used": self._clock()}
        with self._database.write() as connection:
            changed = connection.execute(update(stored_responses).where(self._of(tenant, name)).values(values))
        self._make_room()
        return changed.rowcount > 0

    def _delete(self, tenant: str, name: str) -> bool:
        with self._database.write() as connection:
            return connection.execute(delete(stored_responses).where(self._of(tenant, name))).rowcount > 0

    def _of(self, tenant: str, name: str) -> ColumnElement[bool]:
        return and_(columns.what == self.what, columns.tenant == tenant, columns.id == name)

    # --- bounds

    def _make_room(self) -> None:
        """In a transaction of its own: the last of several concurrent ones sees the rows of all."""
        with self._database.write() as connection:
            connection.execute(delete(stored_responses).where(columns.created < self._clock() - LIFETIME_S))
            if self._over(connection):
                if self._database.kind == POSTGRESQL:
                    connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": EVICTION_LOCK})
                self._evict(connection)

    def _usage(self, connection: Connection) -> dict[str, tuple[int, int]]:
        """Bytes and number of responses, by tenant."""
        query = select(columns.tenant, func.sum(columns.size), func.count()).where(columns.what == self.what)
        return {
            tenant: (int(size), count) for tenant, size, count in connection.execute(query.group_by(columns.tenant))
        }

    def _over(self, connection: Connection) -> bool:
        usage = self._usage(connection).values()
        return sum(size for size, _ in usage) > self.max_bytes or sum(count for _, count in usage) > self.max_responses

    def _evict(self, connection: Connection) -> None:
        """As MemoryResponseStore does."""
        usage = self._usage(connection)
        for place, bound in enumerate((self.max_bytes, self.max_responses)):
            while sum(one[place] for one in usage.values()) > bound:
                largest = max(usage, key=lambda tenant: usage[tenant][place])
                own = select(columns.id, columns.size).where(columns.what == self.what, columns.tenant == largest)
                name, size = connection.execute(own.order_by(columns.used, columns.created).limit(1)).one()
                connection.execute(delete(stored_responses).where(self._of(largest, name)))
                usage[largest] = (usage[largest][0] - size, usage[largest][1] - 1)


def _values(response: StoredResponse) -> dict[str, Any]:
    return {**{field: getattr(response, field) for field in FIELDS}, "size": response.size}


def _storable(name: str) -> bool:
    """PostgreSQL takes no NUL: there is nothing of such a name."""
    return "\0" not in name
