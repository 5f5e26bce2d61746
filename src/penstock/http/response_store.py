"""Stored responses and chat completions, for later requests: in the memory of this server, where they are gone when it
stops, or in a database that servers share (`shared_responses`)."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

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


class ResponseStore(Protocol):
    """Responses by tenant: for other tenants a response does not exist. When the store is full, the tenant that uses
    the most of it loses its least recently used response, so that no tenant can evict what another stores.

    All methods raise StorageUnavailable where another process or a database keeps them. `param` is the field or
    parameter in which the client sent the id."""

    what: str  # is stored, for error messages: responses or chat completions

    async def check(self) -> None:
        """Before a request is dispatched whose answer is to be stored."""

    async def put(self, tenant: str, name: str, response: StoredResponse) -> None: ...

    async def get(self, tenant: str, name: str, *, param: str = "response_id") -> StoredResponse:
        """Raises NotFound."""

    async def bodies(self, tenant: str) -> list[bytes]: ...

    async def replace(self, tenant: str, name: str, response: StoredResponse) -> None:
        """One that is there. Raises NotFound."""

    async def delete(self, tenant: str, name: str, *, param: str = "response_id") -> None:
        """Raises NotFound."""


class NewResponse:
    """The answer of one request on its way to the store. Its writer notes it, maybe in a thread; it is stored before
    the client gets the end of it, so that the client finds it wherever it asks next."""

    def __init__(self, store: ResponseStore, tenant: str) -> None:
        self._store = store
        self._tenant = tenant
        self._noted: tuple[str, StoredResponse] | None = None

    async def check(self) -> None:
        await self._store.check()

    def note(self, name: str, response: StoredResponse) -> None:
        self._noted = (name, response)

    async def put(self) -> None:
        """Nothing if nothing was noted."""
        if self._noted is not None:
            await self._store.put(self._tenant, *self._noted)


def not_found(what: str, name: str, param: str) -> NotFound:
    return NotFound(
        f"there is no {what} {name[:64]!r}: it was not stored, has been deleted, or was evicted by newer ones",
        param=param,
    )


class TenantStore:
    """The responses of one tenant, the least recently used first."""

    def __init__(self) -> None:
        self.bytes = 0
        self.responses: OrderedDict[str, StoredResponse] = OrderedDict()

    def delete(self, name: str) -> None:
        self.bytes -= self.responses.pop(name).size


class MemoryResponseStore:
    """A ResponseStore. Belongs to one event loop."""

    def __init__(
        self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES, *, what: str = "response"
    ) -> None:
        self.what = what
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self._tenants: dict[str, TenantStore] = {}

    def __len__(self) -> int:
        return sum(len(tenant.responses) for tenant in self._tenants.values())

    @property
    def num_bytes(self) -> int:
        return sum(tenant.bytes for tenant in self._tenants.values())

    async def check(self) -> None:
        pass

    async def put(self, tenant: str, name: str, response: StoredResponse) -> None:
        own = self._tenants.setdefault(tenant, TenantStore())
        own.responses[name] = response
        own.bytes += response.size
        while self.num_bytes > self.max_bytes:
            self._evict(lambda store: store.bytes)
        while len(self) > self.max_responses:
            self._evict(lambda store: len(store.responses))

    async def get(self, tenant: str, name: str, *, param: str = "response_id") -> StoredResponse:
        own = self._find(tenant, name, param)
        own.responses.move_to_end(name)
        return own.responses[name]

    async def bodies(self, tenant: str) -> list[bytes]:
        own = self._tenants.get(tenant)
        return [] if own is None else [response.body for response in own.responses.values()]

    async def replace(self, tenant: str, name: str, response: StoredResponse) -> None:
        await self.delete(tenant, name)
        await self.put(tenant, name, response)

    async def delete(self, tenant: str, name: str, *, param: str = "response_id") -> None:
        self._find(tenant, name, param).delete(name)

    def _find(self, tenant: str, name: str, param: str) -> TenantStore:
        own = self._tenants.get(tenant)
        if own is None or name not in own.responses:
            raise not_found(self.what, name, param)
        return own

    def _evict(self, usage: Callable[[TenantStore], int]) -> None:
        largest = max(self._tenants.values(), key=usage)
        largest.delete(next(iter(largest.responses)))
