"""The links of a sequence's full blocks: their keys (`flow.prefix`), each computed once and kept with its block."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy

import msgspec

from penstock.flow.prefix import TOKEN, TOKEN_BYTES, block_key, pack_tokens


class Link(msgspec.Struct, frozen=True, gc=False):
    """One full block's place in a chain. Keeps the tokens, so that the cache can say what it holds, and the tenant, who
    alone may know. There are as many as blocks; the garbage collector need not go through them, since they refer to
    nothing but bytes and texts."""

    key: bytes
    parent: bytes
    packed: bytes  # the block's token ids
    tenant: str

    @property
    def tokens(self) -> list[int]:
        return array(TOKEN, self.packed).tolist()


class Chain:
    """The links of one sequence's full blocks, as far as they were asked for. Only grows."""

    __slots__ = ("block_size", "links", "root", "tenant")

    def __init__(self, root: bytes, block_size: int, tenant: str = "") -> None:
        """`root` is the tenant's: see `flow.prefix.root_key`, and `CacheManager.chain`."""
        self.root = root
        self.block_size = block_size
        self.tenant = tenant
        self.links: list[Link] = []

    def twin(self, tokens: Sequence[int]) -> Chain:
        """That of another sequence which begins with the same `tokens`: their full blocks are hashed once for both."""
        num_blocks = len(tokens) // self.block_size
        self.grow(tokens, num_blocks)
        twin = copy(self)
        twin.links = self.links[:num_blocks]
        return twin

    def parent_of(self, index: int) -> bytes:
        """The key of all that comes before block `index`."""
        return self.links[index - 1].key if index else self.root

    def grow(self, tokens: Sequence[int], num_blocks: int) -> None:
        """Have links for the first `num_blocks` full blocks of `tokens`, which begin with those linked so far."""
        begin, size = len(self.links), self.block_size
        if num_blocks <= begin:
            return
        parent, tenant = self.parent_of(begin), self.tenant
        packed = pack_tokens(tokens[begin * size : num_blocks * size])
        step = size * TOKEN_BYTES
        for offset in range(0, len(packed), step):
            piece = packed[offset : offset + step]
            key = block_key(parent, piece)
            self.links.append(Link(key, parent, piece, tenant))
            parent = key
