"""Folders for sockets in the folder of temporary files. Only this user may enter them.

A process that is killed leaves its folders behind. So each has a lock, which its maker holds while it lives. A
process that makes a folder removes those whose lock is free. A folder without a lock is not known to be ours: it stays.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PREFIX = "penstock-"
LOCK = ".penstock-owner"
_UNLOCKED = ".penstock-owner.new"  # until its maker has locked it


class PrivateFolder:
    """Removed by `remove`, at the end of a `with`, or when no reference to it is left.

    Not by an exit function, which would be left in a library user's process: if that exits first, the next maker
    removes the folder.
    """

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))  # mode 0700
        self._owned: int | None = _lock(self.path)

    def remove(self) -> None:
        if self._owned is not None:
            lock, self._owned = self._owned, None
            _remove(self.path, lock)

    def __del__(self) -> None:
        if hasattr(self, "_owned"):  # it was made
            self.remove()

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def remove_abandoned() -> None:
    """The folders of this user whose makers have died."""
    with suppress(OSError):
        for entry in os.scandir(tempfile.gettempdir()):
            if entry.name.startswith(PREFIX):
                with suppress(OSError):  # somebody else's, a link, without a lock, or gone meanwhile
                    _remove_if_abandoned(entry.path)


def _remove_if_abandoned(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(folder).st_uid != os.geteuid():
            return
        lock = os.open(LOCK, os.O_RDWR | os.O_NOFOLLOW, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # an error while its maker lives
            shutil.rmtree(path)  # follows no links
        finally:
            os.close(lock)
    finally:
        os.close(folder)


def _lock(path: Path) -> int:
    """It has its name once it is locked: nobody else gets it before."""
    lock = os.open(path / _UNLOCKED, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    with suppress(OSError):  # a file system without locks: if this process is killed, the folder stays
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        (path / _UNLOCKED).rename(path / LOCK)
    return lock


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)
