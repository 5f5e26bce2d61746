"""Keys, tenants and entries of the audit log as JSON. Times are seconds since 1970, money is in USD."""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec

from penstock.gateway.keys.audit import AuditEntry
from penstock.gateway.keys.identity import Scope
from penstock.gateway.keys.records import KeyFields, KeyRecord, TenantFields, TenantRecord

State = Literal["active", "expired", "revoked"]


class NewKey(KeyFields, frozen=True, kw_only=True):
    """A key to create. Its tenant is created with it if need be."""

    tenant: str = ""


class Rotation(msgspec.Struct, frozen=True, kw_only=True):
    """How long the key before stays valid."""

    grace_s: float = 0.0


class NewTenant(TenantFields, frozen=True, kw_only=True):
    """A tenant to create."""

    name: str = ""


class LimitsObject(msgspec.Struct, frozen=True, kw_only=True):
    requests_per_minute: int | None
    tokens_per_minute: int | None
    concurrent_requests: int | None
    usd_per_day: float | None
    usd_per_month: float | None


class KeyObject(LimitsObject, frozen=True, kw_only=True):
    """A key. `key` is the key itself: only the answers to its creation and rotation have it."""

    object: Literal["key"] = "key"
    id: str
    tenant: str
    name: str
    state: State
    scopes: tuple[Scope, ...]
    models: tuple[str, ...] | None
    tier: str
    default_max_tokens: int | None
    max_tokens: int | None
    created_at: int
    expires_at: int | None
    revoked_at: int | None
    rotated_at: int | None
    previous_valid_until: int | None
    key: str | None = None


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a list. `has_more`: the next page is `?after=` the `last_id`."""

    object: Literal["list"] = "list"
    first_id: str | None
    last_id: str | None
    has_more: bool


class KeyList(Page, frozen=True, kw_only=True):
    data: list[KeyObject]


class TenantObject(LimitsObject, frozen=True, kw_only=True):
    """A tenant: limits of all of its keys together, and its weight among tenants that wait."""

    object: Literal["tenant"] = "tenant"
    name: str
    weight: float
    created_at: int


class TenantList(Page, frozen=True, kw_only=True):
    data: list[TenantObject]


class AuditObject(msgspec.Struct, frozen=True, kw_only=True):
    """An entry of the audit log."""

    id: int
    time: float
    actor: str
    action: str
    target: str
    details: dict[str, Any]
    outcome: str
    request_id: str | None


class AuditList(msgspec.Struct, frozen=True, kw_only=True):
    """Newest first. `has_more`: the next page is `?before=` the last id."""

    object: Literal["list"] = "list"
    data: list[AuditObject]
    has_more: bool


ANSWERS = (
    NewKey, Rotation, KeyFields, KeyObject, KeyList, NewTenant, TenantFields, TenantObject, TenantList, AuditObject,
    AuditList,
)  # fmt: skip


def key_object(record: KeyRecord, key: str | None = None) -> KeyObject:
    fields = record.fields
    now = time.time()
    in_grace = record.previous_until is not None and record.previous_until > now
    return KeyObject(
        id=record.id,
        tenant=record.tenant,
        state=record.state(now),
        created_at=int(record.created),
        revoked_at=_seconds(record.revoked),
        rotated_at=_seconds(record.rotated),
        previous_valid_until=_seconds(record.previous_until) if in_grace else None,
        key=key,
        **{name: getattr(fields, name) for name in KeyFields.__struct_fields__},
    )


def tenant_object(record: TenantRecord) -> TenantObject:
    own = {name: getattr(record.fields, name) for name in TenantFields.__struct_fields__}
    return TenantObject(name=record.name, created_at=int(record.created), **own)


def audit_list(entries: list[AuditEntry], limit: int) -> AuditList:
    """Of `limit` + 1 entries, if there are more."""
    shown = [AuditObject(**msgspec.structs.asdict(entry)) for entry in entries[:limit]]
    return AuditList(data=shown, has_more=len(entries) > limit)


def _seconds(time: float | None) -> int | None:
    return None if time is None else int(time)
