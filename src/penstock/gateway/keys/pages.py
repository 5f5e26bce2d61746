"""Queries for lists of keys and tenants, which may be long: in one order, that of tenants and of the age of their keys,
so that a list can be read page by page while keys are created."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, literal, or_, select, tuple_

from penstock.errors import InvalidRequest
from penstock.gateway.keys.records import KeyRecord, KeyState, TenantRecord, Wanted, check_tenant_name
from penstock.gateway.keys.tables import keys, tenants


def key_query(wanted: Wanted, now: float, limit: int | None) -> Select[Any]:
    query = select(keys).order_by(keys.c.tenant, keys.c.created, keys.c.id).limit(limit)
    if wanted.tenant is not None:
        query = query.where(keys.c.tenant == check_tenant_name(wanted.tenant))
    if wanted.search:
        query = query.where(_key_has(_checked(wanted.search)))
    return query if wanted.state is None else query.where(_is_in_state(wanted.state, now))


def tenant_query(wanted: Wanted, limit: int | None) -> Select[Any]:
    query = select(tenants).order_by(tenants.c.name).limit(limit)
    if wanted.tenant is not None:
        query = query.where(tenants.c.name == check_tenant_name(wanted.tenant))
    if wanted.search:
        text = _checked(wanted.search)
        with_key = select(keys.c.id).where(keys.c.tenant == tenants.c.name, _key_has(text)).exists()
        query = query.where(or_(tenants.c.name.icontains(text, autoescape=True), with_key))
    return query


def behind(record: KeyRecord) -> ColumnElement[bool]:
    """Keys that come after this one."""
    place = tuple_(literal(record.tenant), literal(record.created), literal(record.id))
    return tuple_(keys.c.tenant, keys.c.created, keys.c.id) > place


def in_turn(
    begun: str, found_tenants: Sequence[TenantRecord], found_keys: Sequence[KeyRecord]
) -> Iterator[TenantRecord | KeyRecord]:
    """Both in the order of the database. `begun`: a tenant before all of these, some of whose keys are left."""
    own = {tenant: list(group) for tenant, group in groupby(found_keys, lambda key: key.tenant)}
    yield from own.get(begun, ())
    for tenant in found_tenants:
        yield tenant
        yield from own.get(tenant.name, ())


def _key_has(text: str) -> ColumnElement[bool]:
    return or_(*(column.icontains(text, autoescape=True) for column in (keys.c.id, keys.c.name, keys.c.tenant)))


def _checked(search: str) -> str:
    if not search.isprintable():  # PostgreSQL takes no NUL
        raise InvalidRequest("search must be printable", param="search")
    return search


def _is_in_state(state: KeyState, now: float) -> ColumnElement[bool]:
    revoked, expired = keys.c.revoked.is_not(None), and_(keys.c.expires.is_not(None), keys.c.expires <= now)
    match state:
        case "revoked":
            return revoked
        case "expired":
            return and_(~revoked, expired)
        case "active":
            return and_(~revoked, or_(keys.c.expires.is_(None), keys.c.expires > now))
