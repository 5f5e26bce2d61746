"""The keys under which full blocks are found again: a hash chain over a sequence's tokens.

    root(salt) ──► key of block 0 ──► key of block 1 ──► ...

A key stands for its block's tokens and for everything before them, so equal keys mean equal keys and values on the
device, and sequences of different salt never meet. It is computed once per block and travels with it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from copy import copy
from hashlib import blake2b

import msgspec

KEY_BYTES = 16  # an accidental collision would hand out wrong keys and values: 2^64 blocks away
TOKEN = "I"  # noqa: S105 - the array code of a packed token id
TOKEN_BYTES = array(TOKEN).itemsize


class Link(msgspec.Struct, frozen=True, gc=False):
    """One full block's place in a chain. Keeps the tokens, so that the cache can say what it holds. There are as many
    as blocks; the garbage collector need not go through them, since they refer to nothing but bytes."""

    key: bytes
    parent: bytes
    packed: bytes  # the block's token ids

    @property
    def tokens(self) -> list[int]:
        return array(TOKEN, self.packed).tolist()


def digest(parent: bytes, packed: bytes) -> bytes:
    return blake2b(parent + packed, digest_size=KEY_BYTES).digest()


def root(salt: str) -> bytes:
    """Where the chains of a salt begin. Personalised, so that no block's key can equal it by construction."""
    return blake2b(salt.encode(), digest_size=KEY_BYTES, person=b"chain root").digest()


def pack_tokens(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"{len(tokens)}{TOKEN}", *tokens)  # in half the time that array(TOKEN, tokens) takes


class Chain:
    """The links of one sequence's full blocks, as far as they were asked for. Only grows."""

    __slots__ = ("block_size", "links", "root")

    def __init__(self, salt: str, block_size: int) -> None:
        self.root = root(salt)
        self.block_size = block_size
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
        parent = self.parent_of(begin)
        packed = pack_tokens(tokens[begin * size : num_blocks * size])
        step = size * TOKEN_BYTES
        for offset in range(0, len(packed), step):
            piece = packed[offset : offset + step]
            key = digest(parent, piece)
            self.links.append(Link(key, parent, piece))
            parent = key
