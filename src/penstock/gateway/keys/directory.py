"""Where the auth middleware looks keys up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from penstock.errors import Unauthorized
from penstock.gateway.keys.identity import ANONYMOUS, Identity


class KeyDirectory(Protocol):
    """Must not wait: it is asked for every request."""

    def identify(self, key: bytes) -> Identity | None:
        """The identity of a key, as a header has it; None: it is not valid, or there is none (`b""`). Takes as long for
        an unknown key as for a known one. Raises Unauthorized for a key that is not valid any more."""

    def find(self, name: str) -> Identity:
        """By the public id, for what goes on after its request: batches and streams. Raises Unauthorized if the key is
        not valid any more."""


class NoKeys:
    """Of a server without keys: every client may do everything."""

    def identify(self, key: bytes) -> Identity:
        return ANONYMOUS

    def find(self, name: str) -> Identity:
        return ANONYMOUS


class SeveralDirectories:
    """Keys of the settings and of the database together."""

    def __init__(self, directories: Sequence[KeyDirectory]) -> None:
        self._directories = directories

    def identify(self, key: bytes) -> Identity | None:
        found = [directory.identify(key) for directory in self._directories]
        return next(filter(None, found), None)

    def find(self, name: str) -> Identity:
        error = Unauthorized("the API key does not exist")
        for directory in self._directories:
            try:
                return directory.find(name)
            except Unauthorized as found:
                error = found
        raise error
