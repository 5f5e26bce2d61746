"""Responses kept for those that go on from them. In memory: they are gone when the server is."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from penstock.errors import NotFound
from penstock.flow import Message

MAX_RESPONSES = 4096
MAX_BYTES = 128 * 2**20  # of bodies and conversations together


class Kept(msgspec.Struct, frozen=True):
    body: bytes  # as it was sent
    said: bytes  # the conversation up to and including it, as JSON

    @property
    def size(self) -> int:
        return len(self.body) + len(self.said)


class ResponseStore:
    """Those that have not been used for longest go first. Their ids cannot be guessed: who has one may use it."""

    def __init__(self, max_responses: int = MAX_RESPONSES, max_bytes: int = MAX_BYTES) -> None:
        self.max_responses = max_responses
        self.max_bytes = max_bytes
        self.bytes = 0
        self._kept: OrderedDict[str, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, name: str, body: bytes, said: list[Message]) -> None:
        """Each has all of its conversation, so that it does not need those before it."""
        self._kept[name] = kept = Kept(body, msgspec.json.encode(said))
        self.bytes += kept.size
        while len(self._kept) > self.max_responses or self.bytes > self.max_bytes:
            self.bytes -= self._kept.popitem(last=False)[1].size

    def body(self, name: str) -> bytes:
        return self._find(name, "response_id").body

    def said(self, name: str) -> list[Message]:
        return list(msgspec.json.decode(self._find(name, "previous_response_id").said))

    def drop(self, name: str) -> None:
        self.bytes -= self._find(name, "response_id").size
        del self._kept[name]

    def _find(self, name: str, param: str) -> Kept:
        if name not in self._kept:
            raise NotFound(
                f"there is no response {name[:64]!r}: it was not stored, has been deleted, or made room for newer ones",
                param=param,
            )
        self._kept.move_to_end(name)
        return self._kept[name]
