"""Where the auth middleware looks keys up."""

from __future__ import annotations

from typing import Protocol

from penstock.gateway.keys.identity import ANONYMOUS, Identity


class KeyDirectory(Protocol):
    def identify(self, key: bytes) -> Identity | None:
        """The identity of a key, as a header has it; None: it is not valid, or there is none (`b""`). Takes as long for
        an unknown key as for a known one. Called for every request, so it must not wait."""


class NoKeys:
    """Of a server without keys: every client may do everything."""

    def identify(self, key: bytes) -> Identity:
        return ANONYMOUS
