"""Keys and tenants as they are stored, and what can be set of them. Times are Unix times."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from penstock.errors import InvalidRequest
from penstock.gateway.keys.identity import Identity, Limits, Scope
from penstock.gateway.keys.tiers import DEFAULT_TIER, TIERS
from penstock.settings.sections import error_in_words
from penstock.system import typed

MAX_COUNT = 2**53  # JSON numbers of clients that read doubles
MICROUSD = 1_000_000  # per USD
Count = Annotated[int, Meta(ge=1, le=MAX_COUNT)]
Usd = Annotated[float, Meta(ge=0, le=1e9)]
ModelName = Annotated[str, Meta(min_length=1, max_length=256)]
TENANT_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

Fields = TypeVar("Fields", bound="LimitFields")


class LimitFields(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Limits as they are set; None: no limit."""

    requests_per_minute: Count | None = None
    tokens_per_minute: Count | None = None
    concurrent_requests: Count | None = None
    usd_per_day: Usd | None = None
    usd_per_month: Usd | None = None

    @property
    def limits(self) -> Limits:
        return Limits(
            requests_per_minute=self.requests_per_minute,
            tokens_per_minute=self.tokens_per_minute,
            concurrent_requests=self.concurrent_requests,
            microusd_per_day=None if self.usd_per_day is None else round(self.usd_per_day * MICROUSD),
            microusd_per_month=None if self.usd_per_month is None else round(self.usd_per_month * MICROUSD),
        )


class TenantFields(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set of a tenant."""

    weight: Annotated[float, Meta(ge=0.01, le=1000)] = 1.0


class KeyFields(LimitFields, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What can be set of a key."""

    name: Annotated[str, Meta(max_length=128)] = ""
    scopes: Annotated[tuple[Scope, ...], Meta(min_length=1)] = (Scope.INFERENCE,)
    models: Annotated[tuple[ModelName, ...], Meta(min_length=1, max_length=1000)] | None = None
    tier: str = DEFAULT_TIER
    default_max_tokens: Count | None = None
    max_tokens: Count | None = None
    expires_at: Annotated[int, Meta(ge=0, le=MAX_COUNT)] | None = None

    def __post_init__(self) -> None:
        if self.tier not in TIERS:
            raise InvalidRequest(f"tier must be one of {', '.join(TIERS)}, got {self.tier[:64]!r}", param="tier")
        if self.max_tokens is not None and (self.default_max_tokens or 0) > self.max_tokens:
            raise InvalidRequest(
                f"default_max_tokens ({self.default_max_tokens}) is larger than max_tokens ({self.max_tokens})",
                param="default_max_tokens",
            )
        for param, texts in (("name", [self.name]), ("models", self.models or ())):
            if not all(text.isprintable() for text in texts):
                raise InvalidRequest(f"{param} must be printable", param=param)


class TenantRecord(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    created: float
    weight: float
    limits: Limits

    @property
    def fields(self) -> TenantFields:
        return TenantFields(weight=self.weight, **_usd_fields(self.limits))


KeyState = Literal["active", "expired", "revoked"]


class KeyRecord(msgspec.Struct, frozen=True, kw_only=True):
    id: str  # the public part of the key
    tenant: str
    name: str
    hash: bytes
    previous_hash: bytes | None = None  # of the key before the last rotation,
    previous_until: float | None = None  # which is valid until then
    scopes: frozenset[Scope]
    models: tuple[str, ...] | None
    tier: str
    limits: Limits
    default_max_tokens: int | None
    max_tokens: int | None
    created: float
    expires: float | None
    revoked: float | None = None
    rotated: float | None = None

    def state(self, now: float) -> KeyState:
        if self.revoked is not None:
            return "revoked"
        return "expired" if self.expires is not None and now >= self.expires else "active"

    @property
    def fields(self) -> KeyFields:
        return KeyFields(
            name=self.name,
            scopes=tuple(sorted(self.scopes)),
            models=self.models,
            tier=self.tier,
            default_max_tokens=self.default_max_tokens,
            max_tokens=self.max_tokens,
            expires_at=None if self.expires is None else int(self.expires),
            **_usd_fields(self.limits),
        )

    def identity(self, tenant: TenantRecord) -> Identity:
        return Identity(
            tenant=self.tenant,
            key=self.id,
            scopes=self.scopes,
            models=None if self.models is None else frozenset(self.models),
            tier=self.tier,
            weight=tenant.weight,
            key_limits=self.limits,
            tenant_limits=tenant.limits,
            default_max_tokens=self.default_max_tokens,
            max_tokens=self.max_tokens,
            expires=self.expires,
        )


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which keys and tenants a list has; None: any."""

    tenant: str | None = None
    search: str | None = None  # part of the id or name of a key, or of the name of its tenant
    state: KeyState | None = None  # of keys


EVERYTHING = Wanted()


def parse_fields(kind: type[Fields], values: Mapping[str, Any], before: Fields | None = None) -> Fields:
    """`values` over those there were `before`. Raises InvalidRequest with the field at fault."""
    kept = {} if before is None else msgspec.to_builtins(before)
    try:
        return typed.convert({**kept, **values}, kind)
    except msgspec.ValidationError as error:
        # "Expected `int` >= 1 - at `$.max_tokens`", "Object contains unknown field `x`"
        what, _, path = str(error).partition(" - at ")
        if unknown := re.search(r"unknown field `(.*)`", what):
            name, known = unknown[1][:64], ", ".join(kind.__struct_fields__)
            raise InvalidRequest(f"{name} is not a known field; known: {known}", param=name) from None
        param = path.strip("`").removeprefix("$.").removesuffix("[...]") or "body"
        if "enum value" in what:
            raise InvalidRequest(f"{param} must be of {', '.join(Scope)}", param=param) from None
        raise InvalidRequest(f"{param} {error_in_words(what)}", param=param) from None


def check_tenant_name(name: Any) -> str:
    if not isinstance(name, str) or not TENANT_NAME.fullmatch(name):
        raise InvalidRequest(
            "tenant must have 1 to 64 letters, digits, dots, hyphens and underscores, and begin with a letter or digit",
            param="tenant",
        )
    return name


def _usd_fields(limits: Limits) -> dict[str, Any]:
    day, month = limits.microusd_per_day, limits.microusd_per_month
    return {
        "requests_per_minute": limits.requests_per_minute,
        "tokens_per_minute": limits.tokens_per_minute,
        "concurrent_requests": limits.concurrent_requests,
        "usd_per_day": None if day is None else day / MICROUSD,
        "usd_per_month": None if month is None else month / MICROUSD,
    }
