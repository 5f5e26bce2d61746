"""The audit log: who administrated what, and how that ended. Each entry is also a line of the log `penstock.audit`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from penstock.database.database import Database

logger = logging.getLogger("penstock.audit")

STARTED, DONE, CANCELLED = "started", "ok", "cancelled"
MAX_TARGET = 256  # characters


class Actor(msgspec.Struct, frozen=True):
    """Who acts: `key:<id>`, `cli:<user>`, or `anonymous` on a server without keys."""

    name: str
    request_id: str | None = None


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True):
    id: int
    time: float
    actor: str
    action: str  # "key.create", "model.load"
    target: str  # the id of a key, the name of a tenant or model
    details: dict[str, Any]
    outcome: str  # "ok", "cancelled", an error's code, or "started": it has not ended, or the server was killed
    request_id: str | None


class AuditLog:
    """Calls block."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def add(
        self,
        connection: Connection,
        actor: Actor,
        action: str,
        target: str,
        details: dict[str, Any],
        outcome: str = DONE,
    ) -> int:
        """In the transaction of the change itself; returns the id."""
        from penstock.gateway.keys.tables import audit

        target = printable(target)
        log_action(actor, action, target, outcome)
        added = connection.execute(
            audit.insert().values(
                time=self._clock(),
                actor=actor.name,
                action=action,
                target=target,
                details=details,
                outcome=outcome,
                request_id=actor.request_id,
            )
        )
        assert added.inserted_primary_key is not None
        return int(added.inserted_primary_key[0])

    def begin(self, actor: Actor, action: str, target: str, details: dict[str, Any]) -> int:
        """Before an action outside the database."""
        with self._database.write() as connection:
            return self.add(connection, actor, action, target, details, STARTED)

    def end(self, entry: int, outcome: str) -> None:
        from penstock.gateway.keys.tables import audit

        with self._database.write() as connection:
            connection.execute(audit.update().where(audit.c.id == entry).values(outcome=outcome))

    def entries(self, *, limit: int, before: int | None = None, target: str | None = None) -> list[AuditEntry]:
        """Newest first; those with ids below `before`."""
        from penstock.gateway.keys.tables import audit

        query = audit.select().order_by(audit.c.id.desc()).limit(limit)
        if before is not None:
            query = query.where(audit.c.id < before)
        if target is not None:
            query = query.where(audit.c.target == printable(target))
        with self._database.read() as connection:
            rows = list(connection.execute(query))
        return [AuditEntry(**{name: getattr(row, name) for name in AuditEntry.__struct_fields__}) for row in rows]


def printable(target: str) -> str:
    """A client may have sent it: PostgreSQL takes no NUL, and a log line no line break."""
    return target[:MAX_TARGET].encode("unicode_escape").decode()[:MAX_TARGET]


def log_action(actor: Actor, action: str, target: str, outcome: str) -> None:
    fields = {"actor": actor.name, "action": action, "target": target, "request_id": actor.request_id}
    logger.info("%s %s by %s: %s", action, target, actor.name, outcome, extra=fields)
