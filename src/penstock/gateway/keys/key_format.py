"""The form of a key: `sk-penstock-<id>-<secret>`.

The id is public: it names the key in lists, in the audit log and in usage. The secret has 256 bits, so a plain SHA-256
protects it as well as a slow hash would.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string

PREFIX = "sk-penstock-"
ID_LENGTH, SECRET_LENGTH = 12, 43  # characters: 60 and 256 bits
_ID_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32: no letters that look like others
_SECRET_ALPHABET = string.ascii_letters + string.digits
_ID = re.compile(r"[0-9a-hjkmnp-tv-z]{12}")
_KEY = re.compile(rb"sk-penstock-([0-9a-hjkmnp-tv-z]{12})-[0-9A-Za-z]{43}")
HASH_BYTES = 32


def new_id() -> str:
    return "".join(secrets.choice(_ID_ALPHABET) for _ in range(ID_LENGTH))


def new_key(key_id: str) -> str:
    """A key with a new secret."""
    secret = "".join(secrets.choice(_SECRET_ALPHABET) for _ in range(SECRET_LENGTH))
    return f"{PREFIX}{key_id}-{secret}"


def key_id(key: bytes) -> str:
    """The id part; "" if it is not such a key."""
    match = _KEY.fullmatch(key)
    return match[1].decode() if match else ""


def is_id(text: str) -> bool:
    return _ID.fullmatch(text) is not None


def key_hash(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
