"""Warnings about fields that are accepted without effect: a response header, and a line in the log."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from penstock.stream.active_request import ActiveRequest

logger = logging.getLogger(__name__)

HEADER = "x-penstock-warnings"
MAX_HEADER = 2000  # characters: proxies reject responses with headers of 4 KiB or more
MAX_WARNING = 400
MAX_LOGGED = 256  # distinct texts: clients control what is in them


def warning_header(active_requests: Iterable[ActiveRequest]) -> dict[str, str]:
    """The header with the distinct warnings of all prompts; empty without any."""
    texts = distinct_warnings(active_requests)
    return {HEADER: shorten("; ".join(texts), MAX_HEADER)} if texts else {}


def distinct_warnings(active_requests: Iterable[ActiveRequest]) -> list[str]:
    """In order of first appearance, as text that is safe in a header and in a log line."""
    seen = dict.fromkeys(warning for active in active_requests for warning in active.warnings)
    return [shorten(ascii_line(warning), MAX_WARNING) for warning in seen]


def ascii_line(text: str) -> str:
    """One line of ASCII."""
    escaped = " ".join(text.split()).encode("ascii", "backslashreplace").decode()
    return "".join(letter if letter.isprintable() else "?" for letter in escaped)


def shorten(text: str, max_length: int) -> str:
    return text if len(text) <= max_length else text[: max_length - 3] + "..."


class WarningLog:
    """Logs each distinct warning once, and no more than MAX_LOGGED of them."""

    def __init__(self) -> None:
        self._logged: set[str] = set()

    def log(self, active_requests: Iterable[ActiveRequest]) -> None:
        for text in distinct_warnings(active_requests):
            if text in self._logged or len(self._logged) > MAX_LOGGED:
                continue
            self._logged.add(text)
            if len(self._logged) > MAX_LOGGED:
                logger.warning("more than %d distinct warnings: no more are logged", MAX_LOGGED)
            else:
                logger.warning("accepted without effect: %s", text)
