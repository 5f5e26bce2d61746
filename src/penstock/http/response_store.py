"""Stored responses and chat completions, for later requests. In memory: they are gone when the server stops."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import RLock

import msgspec

from penstock.errors import NotFound
from penstock.flow import Message

MAX_RESPONSES = 4096
MAX_BYTES = 128 * 2**20  # of bodies and conversations together


class StoredResponse(msgspec.Struct, frozen=True):
    """A response with all of its conversation, so that it does not depend on earlier ones. All fields are JSON."""

    body: bytes  # as it was sent
    conversation: bytes  # up to and including the response, as messages
    items: bytes = b"[]"  # the conversation before the response, as items
    pieces: bytes = b"[]"  # of its items: `responses.event_sequence`

    @property
    def size(self) -> int:
        return len(self.body) + len(self.conversation) + len(self.items) + len(self.pieces)

    def messages(self) -> list[Message]:
        return list(msgspec.json.decode(self.conversation))


class TenantStore:
    """The responses of one tenant, the least recently used first."""

    def __init__(self) -> None:
        self.bytes = 0
        self.responses: OrderedDict[str, StoredResponse] = OrderedDict()

    def delete(self, name: str) -> None:
        self.bytes -= self.responses.pop(name).size


class ResponseStore:
    """Responses by tenant: for other tenants a response does not exist. When the store is full, the tenant that uses
    the most of it loses its least recently used response, so that no tenant can evict what another stores.

    Thread-safe: long responses are written, and then stored, in threads."""

    def __init__(
        self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES, *, what: str = "response"
    ) -> None:
        """`what` is stored, for error messages: responses or chat completions."""
        self.what = what
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self._tenants: dict[str, TenantStore] = {}
        self._lock = RLock()

    def __len__(self) -> int:
        return sum(len(tenant.responses) for tenant in self._tenants.values())

    @property
    def num_bytes(self) -> int:
        return sum(tenant.bytes for tenant in self._tenants.values())

    def put(self, tenant: str, name: str, response: StoredResponse) -> None:
        with self._lock:
            own = self._tenants.setdefault(tenant, TenantStore())
            own.responses[name] = response
            own.bytes += response.size
            while self.num_bytes > self.max_bytes:
                self._evict(lambda store: store.bytes)
            while len(self) > self.max_responses:
                self._evict(lambda store: len(store.responses))

    def get(self, tenant: str, name: str, *, param: str = "response_id") -> StoredResponse:
        """`param` is the field or parameter in which the client sent the id."""
        with self._lock:
            own = self._tenants.get(tenant)
            if own is not None and name in own.responses:
                own.responses.move_to_end(name)
                return own.responses[name]
        raise NotFound(
            f"there is no {self.what} {name[:64]!r}: it was not stored, has been deleted, or was evicted by newer ones",
            param=param,
        )

    async def fetch(self, tenant: str, name: str, *, param: str = "response_id") -> StoredResponse:
        """`get`, where another process may keep it."""
        return self.get(tenant, name, param=param)

    def all(self, tenant: str) -> list[StoredResponse]:
        with self._lock:
            own = self._tenants.get(tenant)
            return [] if own is None else list(own.responses.values())

    def delete(self, tenant: str, name: str) -> None:
        with self._lock:
            self.get(tenant, name)
            self._tenants[tenant].delete(name)

    def _evict(self, usage: Callable[[TenantStore], int]) -> None:
        largest = max(self._tenants.values(), key=usage)
        largest.delete(next(iter(largest.responses)))
