"""Tenants: each API key is one; a server without keys has a single tenant with an empty name.

What belongs to a tenant (cached prefixes, records of requests, stored responses) does not exist for the others.
"""

from __future__ import annotations

from hashlib import blake2b

from starlette.types import Scope

DEFAULT_TENANT = ""  # of a server without keys
NAME_BYTES = 12


def tenant_of_key(key: bytes) -> str:
    """The same for the same key on every server; the key cannot be derived from it."""
    return blake2b(key, digest_size=NAME_BYTES, person=b"penstock tenant").hexdigest()


def tenant_of(scope: Scope) -> str:
    """As the auth middleware has set it. A KeyError means that a route is not behind it."""
    tenant: str = scope["state"]["tenant"]
    return tenant
