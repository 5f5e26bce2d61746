"""Who sends a request, as the auth middleware has set it. A KeyError means that a route is not behind it.

What belongs to a tenant (cached prefixes, records of requests, stored responses) does not exist for the others.
"""

from __future__ import annotations

from starlette.types import Scope

from penstock.gateway.keys.identity import Identity


def identity_of(scope: Scope) -> Identity:
    identity: Identity = scope["state"]["identity"]
    return identity


def tenant_of(scope: Scope) -> str:
    return identity_of(scope).tenant
