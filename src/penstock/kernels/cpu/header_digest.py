"""Tells whether the native library and this source tree agree on the layout of what they share.

The build compiles the digest of the headers into the library. A wheel has no headers: its library was built with it.
"""

from __future__ import annotations

import zlib
from pathlib import Path


def header_digest(folder: Path) -> int | None:
    """Of the headers under `folder`; None if there are none."""
    digest = 0
    headers = sorted(folder.glob("*.h"))
    for header in headers:
        digest = zlib.crc32(header.read_bytes(), digest)
    return digest if headers else None
