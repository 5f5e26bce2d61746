"""The contents of files on disk, named by their ids. Writers see their own draft; a content is there as a whole or not
at all, also after a crash."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

from penstock.errors import StorageFull

MIN_FREE_BYTES = 1 << 30  # of the disk, which stay free for everything else
DRAFT = ".draft"


class Draft:
    """A content while it is written. Leaving the context without `publish` removes it."""

    def __init__(self, area: FileArea) -> None:
        self._area = area
        self._path = area.root / (secrets.token_hex(16) + DRAFT)
        self._file: BinaryIO = open(self._path, "xb", opener=_private)  # noqa: SIM115
        self.size = 0

    def write(self, data: bytes) -> None:
        """Raises StorageFull."""
        try:
            self._file.write(data)
        except OSError as error:
            raise self._area.storage_full(error) from error
        self.size += len(data)

    def publish(self, name: str) -> None:
        """As the content of the file with this id. Durable when this returns."""
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._area.storage_full(error) from error
        self._file.close()
        self._path.rename(self._area.path(name))
        self._area.sync()

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class FileArea:
    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, exist_ok=True)

    def new_draft(self) -> Draft:
        return Draft(self)

    def path(self, name: str) -> Path:
        """`name` is an id that this server drew, never a client's file name."""
        return self.root / name

    def check_space(self, num_bytes: int) -> None:
        """Raises StorageFull if so many bytes would take what has to stay free."""
        if shutil.disk_usage(self.root).free - num_bytes < MIN_FREE_BYTES:
            raise self.storage_full(None)

    def storage_full(self, error: OSError | None) -> StorageFull:
        reason = f" ({error.strerror})" if error is not None and error.strerror else ""
        return StorageFull(f"the server's disk has no room for this file{reason}: delete files, or send less")

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def sweep(self, known: Collection[str]) -> None:
        """Remove what a crash has left: drafts, and contents whose file is not `known`."""
        for path in self.root.iterdir():
            if path.name not in known:
                path.unlink(missing_ok=True)

    def sync(self) -> None:
        """Make renames durable."""
        folder = os.open(self.root, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
