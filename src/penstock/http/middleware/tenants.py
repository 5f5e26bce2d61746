"""Whose request it is. Each API key is a tenant of its own; a server without keys has one, whose name is empty.

What belongs to a tenant (cached prefixes, records of requests, stored responses) does not exist for the others.
"""

from __future__ import annotations

from hashlib import blake2b

from starlette.types import Scope

ONLY = ""  # the tenant of a server without keys
NAME_BYTES = 12


def tenant_of_key(key: bytes) -> str:
    """The same for the same key, on every server; the key does not follow from it."""
    return blake2b(key, digest_size=NAME_BYTES, person=b"penstock tenant").hexdigest()


def tenant_of(scope: Scope) -> str:
    """As `guards.Keys` has found it. A KeyError is a route that nobody guards."""
    tenant: str = scope["state"]["tenant"]
    return tenant
