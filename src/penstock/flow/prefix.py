"""Prefix keys, under which KV blocks are cached: a hash chain over a sequence's tokens, from a root that only this
server can compute.

    root_key(secret, tenant, salt, adapter) ──► key of block 0 ──► key of block 1 ──► ...

A key identifies its block's tokens and all tokens before them. The root is keyed with a secret that the server draws at
start and sends to every engine: chains of different tenants, salts or adapters never meet, and no client can compute a
key, even if it guesses the tokens. Frontend and engine compute the same keys.
"""

from __future__ import annotations

import secrets
import struct
from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

from penstock.flow.adapter import Adapter

KEY_BYTES = 16  # a collision would share wrong keys and values: expected after 2^64 blocks
SECRET_BYTES = 32
TOKEN = "I"  # noqa: S105 - the array code of a packed token id
TOKEN_BYTES = array(TOKEN).itemsize


def draw_secret() -> bytes:
    """One per server. It is enough to compute the keys of all tenants."""
    return secrets.token_bytes(SECRET_BYTES)


def root_key(secret: bytes, tenant: str, salt: str, adapter: Adapter | None = None) -> bytes:
    """The root of the chains of a tenant, salt and adapter. Everything else that decides keys and values (images)
    belongs in it too. Personalised, so that it never equals a block's key by construction."""
    named = () if adapter is None else adapter.key
    parts = msgspec.msgpack.encode((tenant, salt, *named))  # unambiguous about where each part ends
    return blake2b(parts, digest_size=KEY_BYTES, key=secret, person=b"chain root").digest()


def block_key(parent: bytes, packed: bytes) -> bytes:
    """The key of a full block: `parent` is the key of the block before it or the root, `packed` its tokens."""
    return blake2b(parent + packed, digest_size=KEY_BYTES).digest()


def pack_tokens(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"{len(tokens)}{TOKEN}", *tokens)  # twice as fast as array(TOKEN, tokens)
