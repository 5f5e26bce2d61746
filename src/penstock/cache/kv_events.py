"""What other routers need to know of the prefix cache: which blocks came and which went, in the structs of vLLM's KV
events, whose field order is their format."""

from __future__ import annotations

import msgspec

from penstock.cache.prefix_chain import ChainLink


class KvEvent(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True, frozen=True):
    """A tagged array on the wire."""


class BlockStored(KvEvent, frozen=True):
    """Full blocks that follow each other are cached."""

    block_hashes: list[bytes]
    parent_block_hash: bytes | None  # None: the first is the first of a prompt
    token_ids: list[int]  # of all of them
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class BlockRemoved(KvEvent, frozen=True):
    block_hashes: list[bytes]
    medium: str | None = None


class AllBlocksCleared(KvEvent, frozen=True):
    pass


class KvEventLog:
    """Collects changes of the first cache group between two readings."""

    def __init__(self, block_size: int, medium: str) -> None:
        self._block_size = block_size
        self._medium = medium
        self._events: list[KvEvent] = [AllBlocksCleared()]  # a new engine has nothing cached

    def store(self, link: ChainLink, *, first: bool) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockStored) and not first and last.block_hashes[-1] == link.parent:
            last.block_hashes.append(link.key)
            last.token_ids.extend(link.tokens)
            return
        parent = None if first else link.parent
        self._events.append(BlockStored([link.key], parent, link.tokens, self._block_size, None, self._medium))

    def remove(self, link: ChainLink) -> None:
        last = self._events[-1] if self._events else None
        if isinstance(last, BlockRemoved):
            last.block_hashes.append(link.key)
        else:
            self._events.append(BlockRemoved([link.key], self._medium))

    def clear(self) -> None:
        """The cache is empty: events that were not sent yet are dropped."""
        self._events = [AllBlocksCleared()]

    def take(self) -> list[KvEvent]:
        events, self._events = self._events, []
        return events
