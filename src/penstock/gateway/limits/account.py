"""Who has limits, and how much of them is in use."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Account(NamedTuple):
    """Who has limits: a key, or a whole tenant."""

    tenant: str
    key: str = ""  # "": the tenant


class AccountUse(msgspec.Struct, frozen=True, kw_only=True):
    """The live use of an account."""

    requests: int = 0  # within the last 60 seconds
    settled_tokens: int = 0  # within the last 60 seconds
    reserved_tokens: int = 0  # of open requests
    open_requests: int = 0
    settled_microusd_day: int = 0
    settled_microusd_month: int = 0
    reserved_microusd: int = 0


def accounts_of(tenant: str, key: str) -> list[Account]:
    """Those that a request counts for."""
    return [Account(tenant, key), Account(tenant)] if key else [Account(tenant)]
