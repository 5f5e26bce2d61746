"""The keys of the database, in memory: a request is identified without a query."""

from __future__ import annotations

import hmac
import time
from collections import defaultdict
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
        self._keys: dict[str, tuple[KeyRecord, Identity]] = {}
        self._tenants: dict[str, TenantRecord] = {}
        self._keys_of: defaultdict[str, set[str]] = defaultdict(set)  # by tenant

    def __len__(self) -> int:
        return len(self._keys)

    def apply(self, changes: Changes) -> None:
        changed = {record.id: record for record in changes.keys}
        for tenant in changes.tenants:
            self._tenants[tenant.name] = tenant
            for name in self._keys_of[tenant.name]:
                changed.setdefault(name, self._keys[name][0])
        for record in changed.values():
            self._keys[record.id] = record, record.identity(self._tenants[record.tenant])
            self._keys_of[record.tenant].add(record.id)
        self.number = changes.number

    def identify(self, key: bytes) -> Identity | None:
        """Raises KeyRevoked and KeyExpired for a key that was valid: only its owner knows it."""
        stored = self._keys.get(key_id(key))
        record = None if stored is None else stored[0]
        # One hash and two comparisons, each in constant time, whether there is such a key or not.
        digest = key_hash(key)
        current = hmac.compare_digest(digest, NO_HASH if record is None else record.hash)
        previous = hmac.compare_digest(digest, (None if record is None else record.previous_hash) or NO_HASH)
        if stored is None or not (current or (previous and self._in_grace(stored[0]))):
            return None
        self._check_state(stored[0])
        return stored[1]

    def find(self, name: str) -> Identity:
        stored = self._keys.get(name)
        if stored is None:
            raise Unauthorized("the API key does not exist")
        self._check_state(stored[0])
        return stored[1]

    def _in_grace(self, record: KeyRecord) -> bool:
        return record.previous_until is not None and self._clock() < record.previous_until

    def _check_state(self, record: KeyRecord) -> None:
        match record.state(self._clock()):
            case "revoked":
                raise KeyRevoked("this API key was revoked")
            case "expired":
                raise KeyExpired("this API key has expired")
