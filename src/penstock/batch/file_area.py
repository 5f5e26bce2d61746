"""The contents of files on the disk of one server, named by their ids."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import BinaryIO

from penstock.errors import StorageFull

MIN_FREE_BYTES = 1 << 30  # of the disk, which stay free for everything else
DRAFT = ".draft"


class FileDraft:
    """A Draft."""

    def __init__(self, area: FileArea, name: str) -> None:
        self._area = area
        self._name = name
        self._path = area.root / (name + DRAFT)
        self._file: BinaryIO = open(self._path, "xb", opener=_private)  # noqa: SIM115
        self.size = 0

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._area.storage_full(error) from error
        self.size += len(data)

    def publish(self) -> None:
        try:
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError as error:
            raise self._area.storage_full(error) from error
        self._file.close()
        self._path.rename(self._area.path(self._name))
        self._area.sync()

    def close(self) -> None:
        self._file.close()
        self._path.unlink(missing_ok=True)


class FileArea:
    """FileContents in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(mode=0o700, exist_ok=True)

    def new_draft(self, name: str) -> FileDraft:
        return FileDraft(self, name)

    def path(self, name: str) -> Path:
        return self.root / name

    def local_path(self, name: str) -> Path:
        return self.path(name)

    def open(self, name: str) -> BinaryIO:
        return self.path(name).open("rb")

    def read(self, name: str, offset: int, size: int) -> bytes:
        with self.open(name) as file:
            file.seek(offset)
            return file.read(size)

    def check_space(self, num_bytes: int) -> None:
        if shutil.disk_usage(self.root).free - num_bytes < MIN_FREE_BYTES:
            raise self.storage_full(None)

    def storage_full(self, error: OSError | None) -> StorageFull:
        reason = f" ({error.strerror})" if error is not None and error.strerror else ""
        return StorageFull(f"the server's disk has no room for this file{reason}: delete files, or send less")

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.path(name).unlink(missing_ok=True)

    def remove_abandoned_drafts(self) -> None:
        pass  # there are those of this server only: `sweep` removes others at its start

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
