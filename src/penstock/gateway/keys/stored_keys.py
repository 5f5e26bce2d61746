"""The keys of the database, in memory: a request is identified without a query."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import KeyExpired, KeyRevoked, Unauthorized
from penstock.gateway.keys.key_format import HASH_BYTES, key_hash, key_id
from penstock.gateway.keys.records import KeyRecord, TenantRecord

if TYPE_CHECKING:
    from penstock.gateway.keys.identity import Identity
    from penstock.gateway.keys.store import Changes

NO_HASH = bytes(HASH_BYTES)  # of no key that anybody knows


class StoredKeys:
    """Belongs to one event loop. `KeyManager` keeps it up to date."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.number = -1  # of the last change that was applied
        self._clock = clock
        self._keys: dict[str, KeyRecord] = {}
        self._tenants: dict[str, TenantRecord] = {}
        self._identities: dict[str, tuple[KeyRecord, TenantRecord, Identity]] = {}  # of keys in use, made of both

    def __len__(self) -> int:
        return len(self._keys)

    def apply(self, changes: Changes) -> None:
        """Takes some 10 ms for 100,000 keys: identities are made when they are needed."""
        self._tenants.update((tenant.name, tenant) for tenant in changes.tenants)
        self._keys.update((record.id, record) for record in changes.keys)
        self.number = changes.number

    def identify(self, key: bytes) -> Identity | None:
        """Raises KeyRevoked and KeyExpired for a key that was valid: only its owner knows it."""
        record = self._keys.get(key_id(key))
        # One hash and two comparisons, each in constant time, whether there is such a key or not.
        digest = key_hash(key)
        current = hmac.compare_digest(digest, NO_HASH if record is None else record.hash)
        previous = hmac.compare_digest(digest, (None if record is None else record.previous_hash) or NO_HASH)
        if record is None or not (current or (previous and self._in_grace(record))):
            return None
        self._check_state(record)
        return self._identity(record)

    def name_of(self, key: str) -> str:
        """What people call a key, by its id; "" if it has no name, or is not of this database."""
        record = self._keys.get(key)
        return "" if record is None else record.name

    def find(self, name: str) -> Identity:
        record = self._keys.get(name)
        if record is None:
            raise Unauthorized("the API key does not exist")
        self._check_state(record)
        return self._identity(record)

    def _identity(self, record: KeyRecord) -> Identity:
        tenant, known = self._tenants[record.tenant], self._identities.get(record.id)
        if known is None or known[0] is not record or known[1] is not tenant:
            known = self._identities[record.id] = record, tenant, record.identity(tenant)
        return known[2]

    def _in_grace(self, record: KeyRecord) -> bool:
        return record.previous_until is not None and self._clock() < record.previous_until

    def _check_state(self, record: KeyRecord) -> None:
        match record.state(self._clock()):
            case "revoked":
                raise KeyRevoked("this API key was revoked")
            case "expired":
                raise KeyExpired("this API key has expired")
