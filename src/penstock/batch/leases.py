"""Which server works on which batch, in a database that servers share. Calls block.

A lease holds for LEASE_S and is renewed every RENEW_S (`runner`); when its server is killed, it runs out, and another
server claims the batch. A server that was only slow, and does not know yet that another one has the lease, changes
nothing: every transaction of its job locks the batch and checks the lease (`lock`), and a claim needs the same lock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from sqlalchemy import Connection, delete, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from penstock.batch.records import UNFINISHED, LeaseLost, Status
from penstock.batch.shared_tables import leases
from penstock.batch.tables import batches
from penstock.database.database import POSTGRESQL, Database

LEASE_S = 10.0
RENEW_S = 2.0  # also between looks for batches that other servers have cancelled or left


class Leases:
    def __init__(self, database: Database, worker: str, clock: Callable[[], float] = time.time) -> None:
        """`worker` is this server. `clock` is used with SQLite; PostgreSQL has its own, the same for all servers."""
        self.worker = worker
        self._database = database
        self._clock = clock

    def lock(self, connection: Connection, name: str) -> None:
        """For the rest of the transaction no other server claims the batch. Raises LeaseLost if one has."""
        connection.execute(select(batches.c.id).where(batches.c.id == name).with_for_update())
        if connection.scalar(select(leases.c.worker).where(leases.c.batch_id == name)) != self.worker:
            raise LeaseLost(name)

    def take(self, connection: Connection, name: str) -> bool:
        """Whether the lease is this server's now. The transaction has locked the batch, or made it."""
        now = self._now(connection)
        dialect: Any = postgresql if self._database.kind == POSTGRESQL else sqlite
        values = {"worker": self.worker, "until": now + LEASE_S}
        claim = dialect.insert(leases).values(batch_id=name, **values)
        claim = claim.on_conflict_do_update(index_elements=["batch_id"], set_=values, where=leases.c.until < now)
        return connection.execute(claim.returning(leases.c.batch_id)).one_or_none() is not None

    def free(self) -> list[str]:
        """Unfinished batches that no server works on, oldest first."""
        with self._database.read() as connection:
            held = select(leases.c.batch_id).where(leases.c.until >= self._now(connection))
            query = select(batches.c.id).where(batches.c.status.in_(UNFINISHED), batches.c.id.not_in(held))
            return list(connection.scalars(query.order_by(batches.c.place)))

    def claim(self, name: str) -> bool:
        """Whether this server works on the batch from now on."""
        unfinished = select(batches.c.id).where(batches.c.id == name, batches.c.status.in_(UNFINISHED))
        with self._database.write() as connection:
            if connection.execute(unfinished.with_for_update(skip_locked=True)).one_or_none() is None:
                return False
            return self.take(connection, name)

    def renew(self, names: Collection[str]) -> Mapping[str, tuple[Status, bool]]:
        """The status of each batch, and whether the lease is still this server's."""
        own = (leases.c.worker == self.worker, leases.c.batch_id.in_(names))
        with self._database.write() as connection:
            connection.execute(update(leases).where(*own).values(until=self._now(connection) + LEASE_S))
        joined = batches.outerjoin(leases, leases.c.batch_id == batches.c.id)
        query = select(batches.c.id, batches.c.status, leases.c.worker).select_from(joined)
        with self._database.read() as connection:
            rows = connection.execute(query.where(batches.c.id.in_(names)))
            return {name: (status, worker == self.worker) for name, status, worker in rows}

    def release(self) -> None:
        """All of this server's: another one may go on at once."""
        with self._database.write() as connection:
            connection.execute(delete(leases).where(leases.c.worker == self.worker))

    def end(self, connection: Connection, name: str) -> None:
        """Of a batch that has ended."""
        connection.execute(delete(leases).where(leases.c.batch_id == name))

    def _now(self, connection: Connection) -> float:
        if self._database.kind != POSTGRESQL:
            return self._clock()
        return float(connection.scalar(select(func.extract("epoch", func.clock_timestamp()))) or 0.0)
