"""Thoughts as `encrypted_content`: agents such as Codex send back nothing else of a reasoning item.

Here it is no secret, since the same item has the thoughts as text: it is their UTF-8 in base64, behind a mark by which
it is known again.
"""

from __future__ import annotations

import base64
import binascii

_MARK = "penstock-1:"


def pack(thoughts: str) -> str:
    return _MARK + base64.b64encode(thoughts.encode()).decode()


def unpack(packed: str) -> str | None:
    """None: it was not packed here."""
    if not packed.startswith(_MARK):
        return None
    try:
        return base64.b64decode(packed[len(_MARK) :], validate=True).decode()
    except (binascii.Error, ValueError):
        return None
