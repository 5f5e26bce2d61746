"""JSON that stays on one line.

JSON escapes the line ends of ASCII. Clients that split a decoded text into lines (Python's str.splitlines, httpx's
iter_lines, which the Ollama SDK uses) also end lines at the separators of Unicode, which JSON may hold as they are.
"""

from __future__ import annotations

_ESCAPES = tuple((mark.encode(), b"\\u%04x" % ord(mark)) for mark in "\x85\u2028\u2029")


def escape_separators(data: bytes) -> bytes:
    """The same JSON without line separators of Unicode. They can only be in texts, so escapes may take their place."""
    if not data.isascii():
        for mark, escaped in _ESCAPES:
            data = data.replace(mark, escaped)
    return data
