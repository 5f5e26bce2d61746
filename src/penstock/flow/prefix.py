"""The keys under which KV blocks are cached: a hash chain over a sequence's tokens, from a root that only this server
can compute.

    root_key(secret, tenant, salt) ──► key of block 0 ──► key of block 1 ──► ...

A key stands for its block's tokens and for everything that decides their keys and values before them. The root is
keyed with a secret drawn at start and handed to every engine: chains of different tenants or salts never meet, and no
key can be computed outside, even if the tokens are guessed. Frontend and engine compute the same keys.
"""

from __future__ import annotations

import secrets
import struct
from array import array
from collections.abc import Sequence
from hashlib import blake2b

import msgspec

KEY_BYTES = 16  # an accidental collision would hand out wrong keys and values: 2^64 blocks away
SECRET_BYTES = 32
TOKEN = "I"  # noqa: S105 - the array code of a packed token id
TOKEN_BYTES = array(TOKEN).itemsize


def draw_secret() -> bytes:
    """One per server. It allows to compute the keys of all tenants: keep it secret."""
    return secrets.token_bytes(SECRET_BYTES)


def root_key(secret: bytes, tenant: str, salt: str) -> bytes:
    """Where the chains of a tenant's salt begin. What else than tokens decides keys and values (adapters, images) will
    be a part of it. Personalised, so that no block's key can equal it by construction."""
    parts = msgspec.msgpack.encode((tenant, salt))  # says where each part ends
    return blake2b(parts, digest_size=KEY_BYTES, key=secret, person=b"chain root").digest()


def block_key(parent: bytes, packed: bytes) -> bytes:
    """Of a full block: `parent` is the key before it or the root, `packed` its tokens."""
    return blake2b(parent + packed, digest_size=KEY_BYTES).digest()


def pack_tokens(tokens: Sequence[int]) -> bytes:
    return struct.pack(f"{len(tokens)}{TOKEN}", *tokens)  # in half the time that array(TOKEN, tokens) takes
