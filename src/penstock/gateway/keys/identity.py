"""The identity of a request: which tenant and key it belongs to, and what they may do."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from penstock.errors import Forbidden
from penstock.gateway.keys.tiers import DEFAULT_TIER


class Scope(StrEnum):
    """What a key may do. Every route requires one of them, or none."""

    INFERENCE = "inference"  # generate, embed, tokenize; files, batches and stored responses; list models
    OBSERVE = "observe"  # metrics and the records of the tenant's requests
    ADMIN = "admin"  # models, keys, tenants and the audit log


ALL_SCOPES = frozenset(Scope)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of a key or a tenant; None: no limit. Money is in micro-dollars, days and months are UTC's."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    concurrent_requests: int | None = None
    microusd_per_day: int | None = None
    microusd_per_month: int | None = None


class Identity(msgspec.Struct, frozen=True, kw_only=True):
    """Who sends a request: `scope["state"]["identity"]`, as the auth middleware sets it."""

    tenant: str = ""  # owns cache, records, stored responses, batches, adapters and usage
    key: str = ""  # the public id of the key; "": the server has no keys
    scopes: frozenset[Scope] = frozenset()
    models: frozenset[str] | None = None  # names that requests may ask for; None: all
    tier: str = DEFAULT_TIER
    weight: float = 1.0  # of the tenant, within its tier
    key_limits: Limits = Limits()
    tenant_limits: Limits = Limits()
    default_max_tokens: int | None = None  # of requests that name no limit
    max_tokens: int | None = None  # the largest that a request may ask for
    expires: float | None = None  # Unix time

    def require(self, scopes: frozenset[Scope]) -> None:
        """Raises Forbidden if the key has none of the scopes."""
        if not self.scopes & scopes:
            names = " or ".join(scope.value for scope in Scope if scope in scopes)
            raise Forbidden(f"this API key lacks the scope that this route requires: {names}")


ANONYMOUS = Identity(scopes=ALL_SCOPES)  # of every request to a server without keys
