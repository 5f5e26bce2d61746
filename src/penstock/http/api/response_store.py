"""Responses kept for those that go on from them. In memory: they are gone when the server is."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import RLock

import msgspec

from penstock.errors import NotFound
from penstock.flow import Message

MAX_RESPONSES = 4096
MAX_BYTES = 128 * 2**20  # of bodies and conversations together


class Kept(msgspec.Struct, frozen=True):
    """A response with all of its conversation, so that it does not need those before it. JSON texts."""

    body: bytes  # as it was sent
    said: bytes  # the conversation up to and including it, as messages
    items: bytes = b"[]"  # the conversation up to it, as items
    pieces: bytes = b"[]"  # of its items: see `transcript`

    @property
    def size(self) -> int:
        return len(self.body) + len(self.said) + len(self.items) + len(self.pieces)

    def messages(self) -> list[Message]:
        return list(msgspec.json.decode(self.said))


class Shelf:
    """What one tenant keeps, the one unused for longest first."""

    def __init__(self) -> None:
        self.bytes = 0
        self.kept: OrderedDict[str, Kept] = OrderedDict()

    def drop(self, name: str) -> None:
        self.bytes -= self.kept.pop(name).size


class ResponseStore:
    """Each response is its tenant's: for others there is no such response. Where there is no room for all, the tenant
    that takes the most of it loses the one it has not used for longest: nobody can push out what another keeps.

    Threads may share it: long answers are written, and so kept, in one."""

    def __init__(
        self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES, *, what: str = "response"
    ) -> None:
        """`what` is kept: responses, or chat completions, which nobody goes on from."""
        self.what = what
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self._shelves: dict[str, Shelf] = {}  # by tenant
        self._lock = RLock()

    def __len__(self) -> int:
        return sum(len(shelf.kept) for shelf in self._shelves.values())

    @property
    def num_bytes(self) -> int:
        return sum(shelf.bytes for shelf in self._shelves.values())

    def keep(self, tenant: str, name: str, kept: Kept) -> None:
        with self._lock:
            shelf = self._shelves.setdefault(tenant, Shelf())
            shelf.kept[name] = kept
            shelf.bytes += kept.size
            while self.num_bytes > self.max_bytes:
                self._make_room(lambda shelf: shelf.bytes)
            while len(self) > self.max_responses:
                self._make_room(lambda shelf: len(shelf.kept))

    def find(self, tenant: str, name: str, *, param: str = "response_id") -> Kept:
        """`param`: what the client calls the id."""
        with self._lock:
            shelf = self._shelves.get(tenant)
            if shelf is not None and name in shelf.kept:
                shelf.kept.move_to_end(name)
                return shelf.kept[name]
        raise NotFound(
            f"there is no {self.what} {name[:64]!r}: it was not stored, has been deleted, or made room for newer ones",
            param=param,
        )

    def all(self, tenant: str) -> list[Kept]:
        with self._lock:
            shelf = self._shelves.get(tenant)
            return [] if shelf is None else list(shelf.kept.values())

    def drop(self, tenant: str, name: str) -> None:
        with self._lock:
            self.find(tenant, name)
            self._shelves[tenant].drop(name)

    def _make_room(self, taken: Callable[[Shelf], int]) -> None:
        fullest = max(self._shelves.values(), key=taken)
        fullest.drop(next(iter(fullest.kept)))
