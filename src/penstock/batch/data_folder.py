"""The data folder of a server: a lock, the database, and the contents of files.

penstock.db   tables of `batch.tables`
files/        one for each file, named by its id
batch.lock    held by the server that uses the folder
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from penstock.batch.file_area import FileArea
from penstock.batch.protocol import FileContents
from penstock.errors import InvalidSetting, StorageUnavailable

if TYPE_CHECKING:
    from penstock.batch.store import BatchStore

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")

DATABASE, LOCK, FILES = "penstock.db", "batch.lock", "files"
FILE_THREADS = 4


class DataFolder:
    """BatchData: the open data folder with its lock, database and files, and the threads that use them."""

    def __init__(self, root: Path) -> None:
        """Blocks. Raises StorageUnavailable."""
        from penstock.batch.store import open_store  # with SQLAlchemy

        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = _lock(root / LOCK)
        except OSError as error:
            raise _unusable(root, error.strerror) from None
        try:
            area = FileArea(root / FILES)
            self.contents: FileContents = area
            self.store: BatchStore = open_store(root / DATABASE)
            area.remove(self.store.drop_deleted())
            area.sweep(self.store.file_ids())
        except (OSError, InvalidSetting) as error:
            self._lock.close()
            raise _unusable(root, str(error)) from None
        _log_once.cache_clear()
        self._database_thread = ThreadPoolExecutor(1, thread_name_prefix="batch-database")
        self._file_threads = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="batch-files")

    async def in_database_thread(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._database_thread, call, *arguments)

    async def in_file_thread(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._file_threads, call, *arguments)

    def close(self) -> None:
        self._file_threads.shutdown()
        self._database_thread.shutdown()
        self.store.close()
        self._lock.close()


def _lock(path: Path) -> TextIO:
    """Until the file is closed, or the process ends."""
    file = path.open("a+")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise StorageUnavailable(
            "another server uses the folder of files and batches: use that server, or start this one with another "
            "--data-dir"
        ) from None
    return file


def _unusable(root: Path, reason: str | None) -> StorageUnavailable:
    """The client is not told the path and the reason; the log is."""
    _log_once(root, reason)
    return StorageUnavailable("the server cannot use its folder of files and batches; its log says why")


@functools.cache
def _log_once(root: Path, reason: str | None) -> None:
    """A server with batches to resume tries every second."""
    logger.error("cannot use the data folder %s: %s; set another --data-dir", root, reason)
