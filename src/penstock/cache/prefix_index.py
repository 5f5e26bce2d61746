"""Prefix lookup: which block holds the keys and values of which prefix.

Where other engines walk a radix tree of tokens, the key of a block is the end of a hash chain over all tokens before it
(`prefix_chain`), so a lookup is one dictionary access per block and needs no tree.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.cache.prefix_chain import ChainLink
from penstock.errors import PenstockError
from penstock.flow.prefix import block_key


class PrefixIndex:
    """The published blocks of a pool, by key and by block."""

    def __init__(self, num_blocks: int) -> None:
        self._blocks: dict[bytes, int] = {}  # by key
        self._links: list[ChainLink | None] = [None] * num_blocks  # by block

    def find(self, key: bytes) -> int | None:
        return self._blocks.get(key)

    def find_leading(self, links: Iterable[ChainLink]) -> list[int]:
        """The blocks of these links, up to the first that is not published."""
        found = []
        blocks = self._blocks
        for link in links:
            block = blocks.get(link.key)
            if block is None:
                break
            found.append(block)
        return found

    def link(self, block: int) -> ChainLink | None:
        """None: the block is not published."""
        return self._links[block]

    def blocks(self) -> Iterator[int]:
        """All that are published."""
        return iter(self._blocks.values())

    def add(self, block: int, link: ChainLink) -> bool:
        """Publish a block; False if another block has the key already, which keeps it."""
        if self._blocks.setdefault(link.key, block) != block:
            return False
        self._links[block] = link
        return True

    def remove(self, block: int) -> ChainLink:
        link = self._links[block]
        assert link is not None, f"block {block} is not published"
        self._links[block] = None
        del self._blocks[link.key]
        return link

    def check_integrity(self) -> dict[int, ChainLink]:
        """Raise if keys, blocks and tokens disagree; returns the published blocks."""
        published = {block: link for block, link in enumerate(self._links) if link is not None}
        by_key = {link.key: block for block, link in published.items()}
        if by_key != self._blocks or len(published) != len(self._blocks):
            raise PenstockError("the index and the blocks' own keys disagree")
        for block, link in published.items():
            if block_key(link.parent, link.packed) != link.key:
                raise PenstockError(f"the key of block {block} is not the hash of its tokens")
        return published
