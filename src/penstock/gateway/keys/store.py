"""Keys and tenants in the database. Every change is one transaction: the row, its number in `key_changes`, by which
servers notice it, and its entry in the audit log. Calls block."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Connection, RowMapping, Table, select

from penstock.database.database import Database
from penstock.errors import InvalidRequest, NotFound
from penstock.gateway.keys import key_format, pages
from penstock.gateway.keys.audit import Actor, AuditLog
from penstock.gateway.keys.identity import Limits, Scope
from penstock.gateway.keys.records import (
    EVERYTHING,
    TENANT_NAME,
    KeyFields,
    KeyRecord,
    TenantFields,
    TenantRecord,
    Wanted,
    check_tenant_name,
    parse_fields,
)
from penstock.gateway.keys.tables import key_changes, keys, tenants

Values = Mapping[str, Any]


class Changes(msgspec.Struct, frozen=True):
    """Rows that have changed since a number, and the number now."""

    number: int
    keys: Sequence[KeyRecord]
    tenants: Sequence[TenantRecord]


class KeyStore:
    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self.audit = AuditLog(database, clock)
        self._database = database
        self._clock = clock

    # --- keys

    def create_key(self, tenant: str, values: Values, actor: Actor) -> tuple[KeyRecord, str]:
        """The record, and the key itself, which is stored nowhere. A tenant that does not exist is created."""
        fields = parse_fields(KeyFields, values)
        self._check_expiry(fields)
        key_id = key_format.new_id()
        key = key_format.new_key(key_id)
        with self._database.write() as connection:
            number = _count_change(connection)
            if _row(connection, tenants, tenants.c.name == check_tenant_name(tenant)) is None:
                self._add_tenant(connection, tenant, TenantFields(), number, actor)
            row = {
                "id": key_id, "tenant": tenant, "hash": key_format.key_hash(key.encode()), "created": self._clock(),
                "changed": number, **_key_row(fields),
            }  # fmt: skip
            connection.execute(keys.insert().values(row))
            self.audit.add(connection, actor, "key.create", key_id, {"tenant": tenant, **_shown(fields)})
            return _find_key(connection, key_id), key

    def update_key(self, key_id: str, values: Values, actor: Actor) -> KeyRecord:
        with self._database.write() as connection:
            number = _count_change(connection)
            before = _find_key(connection, key_id)
            fields = parse_fields(KeyFields, values, before.fields)
            if fields.expires_at != before.fields.expires_at:
                self._check_expiry(fields)
            row = {"changed": number, **_key_row(fields)}
            connection.execute(keys.update().where(keys.c.id == key_id).values(row))
            self.audit.add(connection, actor, "key.update", key_id, _difference(before.fields, fields))
            return _find_key(connection, key_id)

    def revoke_key(self, key_id: str, actor: Actor) -> KeyRecord:
        """For good. A key that is revoked already stays as it is."""
        with self._database.write() as connection:
            number = _count_change(connection)
            if _find_key(connection, key_id).revoked is None:
                row = {"changed": number, "revoked": self._clock(), "previous_hash": None, "previous_until": None}
                connection.execute(keys.update().where(keys.c.id == key_id).values(row))
            self.audit.add(connection, actor, "key.revoke", key_id, {})
            return _find_key(connection, key_id)

    def rotate_key(self, key_id: str, grace_s: float, actor: Actor) -> tuple[KeyRecord, str]:
        """A new secret; the one before stays valid for `grace_s` seconds. Id, limits and usage stay."""
        key, now = key_format.new_key(key_id), self._clock()
        with self._database.write() as connection:
            number = _count_change(connection)
            before = _find_key(connection, key_id)
            if before.revoked is not None:
                raise InvalidRequest("the key is revoked: create another one", param="id")
            row = {
                "changed": number, "hash": key_format.key_hash(key.encode()), "rotated": now,
                "previous_hash": before.hash if grace_s > 0 else None,
                "previous_until": now + grace_s if grace_s > 0 else None,
            }  # fmt: skip
            connection.execute(keys.update().where(keys.c.id == key_id).values(row))
            self.audit.add(connection, actor, "key.rotate", key_id, {"grace_s": grace_s})
            return _find_key(connection, key_id), key

    def key(self, key_id: str) -> KeyRecord:
        """Raises NotFound."""
        with self._database.read() as connection:
            return _find_key(connection, key_id)

    def keys(
        self, wanted: Wanted = EVERYTHING, *, after: str | None = None, limit: int | None = None
    ) -> list[KeyRecord]:
        """By tenant, those of each oldest first; only those behind the key with the id `after`."""
        query = pages.key_query(wanted, self._clock(), limit)
        with self._database.read() as connection:
            if after is not None:
                query = query.where(_behind(connection, after))
            return [_key(row) for row in connection.execute(query).mappings()]

    # --- tenants

    def create_tenant(self, name: str, values: Values, actor: Actor) -> TenantRecord:
        fields = parse_fields(TenantFields, values)
        with self._database.write() as connection:
            number = _count_change(connection)
            if _row(connection, tenants, tenants.c.name == check_tenant_name(name)) is not None:
                raise InvalidRequest(f"the tenant {name!r} exists already", param="tenant")
            self._add_tenant(connection, name, fields, number, actor)
            return _find_tenant(connection, name)

    def update_tenant(self, name: str, values: Values, actor: Actor) -> TenantRecord:
        with self._database.write() as connection:
            number = _count_change(connection)
            before = _find_tenant(connection, name).fields
            fields = parse_fields(TenantFields, values, before)
            row = {"changed": number, **_tenant_row(fields)}
            connection.execute(tenants.update().where(tenants.c.name == name).values(row))
            self.audit.add(connection, actor, "tenant.update", name, _difference(before, fields))
            return _find_tenant(connection, name)

    def tenant(self, name: str) -> TenantRecord:
        """Raises NotFound."""
        with self._database.read() as connection:
            return _find_tenant(connection, name)

    def tenants(
        self, wanted: Wanted = EVERYTHING, *, after: str | None = None, limit: int | None = None
    ) -> list[TenantRecord]:
        """By name; only those behind the name `after`."""
        query = pages.tenant_query(wanted, limit)
        if after is not None:
            query = query.where(tenants.c.name > check_tenant_name(after))
        with self._database.read() as connection:
            return [_tenant(row) for row in connection.execute(query).mappings()]

    # --- both

    def owners(
        self, wanted: Wanted, *, after: str | None = None, limit: int | None = None
    ) -> list[TenantRecord | KeyRecord]:
        """Tenants by name, each followed by those of its keys that are wanted; only those behind `after`, which is the
        name of a tenant, or `tenant/id` of a key."""
        name, _, key_id = (after or "").partition("/")
        of_keys, of_tenants = pages.key_query(wanted, self._clock(), limit), pages.tenant_query(wanted, limit)
        with self._database.read() as connection:
            if after is not None:
                of_tenants = of_tenants.where(tenants.c.name > check_tenant_name(name))
                of_keys = of_keys.where(_behind(connection, key_id) if key_id else keys.c.tenant >= name)
            found_tenants = [_tenant(row) for row in connection.execute(of_tenants).mappings()]
            found_keys = [_key(row) for row in connection.execute(of_keys).mappings()]
        return list(islice(pages.in_turn(name, found_tenants, found_keys), limit))

    # --- for servers

    def changes_since(self, number: int) -> Changes:
        """-1: all keys and tenants."""
        with self._database.read() as connection:
            # As text: servers ask twice a second, and compiling it costs as much as the answer.
            now: int = connection.exec_driver_sql("SELECT number FROM key_changes").scalar_one()
            if now == number:
                return Changes(now, (), ())
            # Rows may be newer than `now`: they are read once more the next time. Keys first: the tenant of each is
            # there then.
            changed = connection.execute(select(keys).where(keys.c.changed > number)).mappings()
            found = [_key(row) for row in changed]
            changed = connection.execute(select(tenants).where(tenants.c.changed > number)).mappings()
            return Changes(now, found, [_tenant(row) for row in changed])

    def _add_tenant(self, connection: Connection, name: str, fields: TenantFields, number: int, actor: Actor) -> None:
        row = {"name": name, "created": self._clock(), "changed": number, **_tenant_row(fields)}
        connection.execute(tenants.insert().values(row))
        self.audit.add(connection, actor, "tenant.create", name, _shown(fields))

    def _check_expiry(self, fields: KeyFields) -> None:
        if fields.expires_at is not None and fields.expires_at <= self._clock():
            raise InvalidRequest("expires_at is in the past", param="expires_at")


def _count_change(connection: Connection) -> int:
    """The number of this change. Its row stays locked until the end of the transaction, so that changes become visible
    in the order of their numbers."""
    connection.execute(key_changes.update().values(number=key_changes.c.number + 1))
    return int(connection.execute(select(key_changes.c.number)).scalar_one())


def _row(connection: Connection, table: Table, condition: Any) -> RowMapping | None:
    return connection.execute(select(table).where(condition)).mappings().one_or_none()


def _find_key(connection: Connection, key_id: str) -> KeyRecord:
    row = _row(connection, keys, keys.c.id == key_id) if key_format.is_id(key_id) else None
    if row is None:
        raise NotFound(f"there is no key {key_id[:64]!r}", param="id")
    return _key(row)


def _behind(connection: Connection, key_id: str) -> ColumnElement[bool]:
    try:
        return pages.behind(_find_key(connection, key_id))
    except NotFound:
        raise InvalidRequest(f"after names no key: {key_id[:64]!r}", param="after") from None


def _find_tenant(connection: Connection, name: str) -> TenantRecord:
    row = _row(connection, tenants, tenants.c.name == name) if TENANT_NAME.fullmatch(name) else None
    if row is None:
        raise NotFound(f"there is no tenant {name[:64]!r}", param="tenant")
    return _tenant(row)


def _key(row: RowMapping) -> KeyRecord:
    own = {name: row[name] for name in KeyRecord.__struct_fields__ if name != "limits"}
    own["scopes"] = frozenset(map(Scope, row["scopes"]))
    own["models"] = None if row["models"] is None else tuple(row["models"])
    return KeyRecord(limits=_limits(row), **own)


def _tenant(row: RowMapping) -> TenantRecord:
    return TenantRecord(name=row["name"], created=row["created"], weight=row["weight"], limits=_limits(row))


def _limits(row: RowMapping) -> Limits:
    return Limits(**{name: row[name] for name in Limits.__struct_fields__})


def _key_row(fields: KeyFields) -> dict[str, Any]:
    return {
        "name": fields.name,
        "scopes": sorted(set(fields.scopes)),
        "models": None if fields.models is None else sorted(set(fields.models)),
        "tier": fields.tier,
        "default_max_tokens": fields.default_max_tokens,
        "max_tokens": fields.max_tokens,
        "expires": fields.expires_at,
        **msgspec.structs.asdict(fields.limits),
    }


def _tenant_row(fields: TenantFields) -> dict[str, Any]:
    return {"weight": fields.weight, **msgspec.structs.asdict(fields.limits)}


def _shown(fields: KeyFields | TenantFields) -> dict[str, Any]:
    """For the audit log: what is set."""
    return {name: value for name, value in msgspec.to_builtins(fields).items() if value is not None}


def _difference(before: msgspec.Struct, after: msgspec.Struct) -> dict[str, Any]:
    """For the audit log: old and new value of what changed."""
    old, new = msgspec.to_builtins(before), msgspec.to_builtins(after)
    return {name: [old[name], new[name]] for name in new if old[name] != new[name]}
