"""Reasoning as `encrypted_content`: agents such as Codex send back nothing else of a reasoning item.

It is not secret here, since the same item has the reasoning as text: a prefix that identifies it, then the UTF-8 text
in base64.
"""

from __future__ import annotations

import base64
import binascii

_PREFIX = "penstock-1:"


def pack(reasoning: str) -> str:
    return _PREFIX + base64.b64encode(reasoning.encode()).decode()


def unpack(packed: str) -> str | None:
    """None if another server made it."""
    if not packed.startswith(_PREFIX):
        return None
    try:
        return base64.b64decode(packed[len(_PREFIX) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return None
