"""The hash chain of a sequence's full blocks: their keys (`flow.prefix`), each computed once."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from copy import copy

import msgspec

from penstock.flow.prefix import TOKEN, TOKEN_BYTES, block_key, pack_tokens


class ChainLink(msgspec.Struct, frozen=True, gc=False):
    """One full block in a chain. Has the tokens and the tenant, so that the cache can show its contents to that tenant.
    There are as many as blocks; gc=False, since they refer to bytes and strings only."""

    key: bytes
    parent: bytes
    packed: bytes  # the block's token ids
    tenant: str

    @property
    def tokens(self) -> list[int]:
        return array(TOKEN, self.packed).tolist()


class PrefixChain:
    """The links of one sequence's full blocks, as far as they are computed. Only grows."""

    __slots__ = ("block_size", "links", "root", "tenant")

    def __init__(self, root: bytes, block_size: int, tenant: str = "") -> None:
        """`root` is the tenant's: see `flow.prefix.root_key`, and `CacheManager.chain`."""
        self.root = root
        self.block_size = block_size
        self.tenant = tenant
        self.links: list[ChainLink] = []

    def share(self, tokens: Sequence[int]) -> PrefixChain:
        """A chain for another sequence that begins with the same `tokens`; full blocks are hashed once for both."""
        num_blocks = len(tokens) // self.block_size
        self.grow(tokens, num_blocks)
        shared = copy(self)
        shared.links = self.links[:num_blocks]
        return shared

    def parent_of(self, index: int) -> bytes:
        """The key before block `index`: of the previous block, or the root."""
        return self.links[index - 1].key if index else self.root

    def grow(self, tokens: Sequence[int], num_blocks: int) -> None:
        """Compute links for the first `num_blocks` full blocks of `tokens`, which begin with those linked so far."""
        begin, size = len(self.links), self.block_size
        if num_blocks <= begin:
            return
        parent, tenant = self.parent_of(begin), self.tenant
        packed = pack_tokens(tokens[begin * size : num_blocks * size])
        step = size * TOKEN_BYTES
        for offset in range(0, len(packed), step):
            piece = packed[offset : offset + step]
            key = block_key(parent, piece)
            self.links.append(ChainLink(key, parent, piece, tenant))
            parent = key
