"""What the other modules use of the place where files and batches are: the data folder of one server (`data_folder`),
or a database that servers share (`shared_data`)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol, TypeVar

if TYPE_CHECKING:
    from penstock.batch.store import BatchStore

Answer = TypeVar("Answer")


class Draft(Protocol):
    """A content while it is written. Others see it as a whole or not at all, also after a crash."""

    size: int  # bytes

    def write(self, data: bytes) -> None:
        """Raises StorageFull."""

    def publish(self) -> None:
        """Durable when this returns."""

    def close(self) -> None:
        """Removes it unless it was published."""


class FileContents(Protocol):
    """The contents of files by their ids, which are those that a server drew. All methods block; they raise
    FileNotFoundError for a content that is not there, and StorageUnavailable."""

    def new_draft(self, name: str) -> Draft: ...

    def open(self, name: str) -> BinaryIO:
        """To read it from its beginning."""

    def read(self, name: str, offset: int, size: int) -> bytes: ...

    def local_path(self, name: str) -> Path | None:
        """None: it is not on this machine's disk."""

    def check_space(self, num_bytes: int) -> None:
        """Raises StorageFull if there is no room for so many bytes."""

    def remove(self, names: Collection[str]) -> None: ...

    def remove_abandoned_drafts(self) -> None:
        """Of servers that were killed."""


class BatchData(Protocol):
    """Open, with the threads that use it."""

    store: BatchStore
    contents: FileContents

    async def in_database_thread(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """For methods of the store."""

    async def in_file_thread(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        """For methods of the contents."""

    def close(self) -> None: ...
