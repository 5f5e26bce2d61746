"""The keys of the settings `api_key` and `admin_key`. Each is a tenant of its own, without limits."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from hashlib import blake2b

from penstock.errors import Unauthorized
from penstock.gateway.keys.identity import ALL_SCOPES, Identity, Scope

NAME_BYTES = 12
USER_SCOPES = frozenset({Scope.INFERENCE, Scope.OBSERVE})


class ConfiguredKeys:
    """Holds only hashes of the keys."""

    def __init__(self, keys: Iterable[str], admin_keys: Iterable[str] = ()) -> None:
        scopes = dict.fromkeys(keys, USER_SCOPES) | dict.fromkeys(admin_keys, ALL_SCOPES)
        self._identities = {_digest(key.encode()): _identity(key.encode(), granted) for key, granted in scopes.items()}

    def identify(self, key: bytes) -> Identity | None:
        # The digest is compared with that of every key, each in constant time: the duration reveals nothing.
        digest = _digest(key)
        matches = [one for known, one in self._identities.items() if hmac.compare_digest(digest, known)]
        return matches[0] if matches else None

    def find(self, name: str) -> Identity:
        for identity in self._identities.values():
            if identity.key == name:
                return identity
        raise Unauthorized("the API key does not exist any more")


def tenant_of_key(key: bytes) -> str:
    """The same for the same key on every server; the key cannot be derived from it."""
    return blake2b(key, digest_size=NAME_BYTES, person=b"penstock tenant").hexdigest()


def _identity(key: bytes, scopes: frozenset[Scope]) -> Identity:
    name = tenant_of_key(key)
    return Identity(tenant=name, key=name, scopes=scopes)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
