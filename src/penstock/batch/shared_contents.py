"""The contents of files in the database, as chunks: every server that uses it reads them."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Collection
from typing import Any, BinaryIO, cast

from sqlalchemy import LargeBinary, delete, func, insert, select, text, type_coerce

from penstock.batch.shared_tables import chunks
from penstock.batch.tables import files
from penstock.database.database import Database

CHUNK = 1 << 20  # bytes
DRAFT_S = 86_400.0  # chunks of no file are those of an upload that goes on, or, once they are so old, was broken off


class SharedDraft:
    """A Draft: its chunks are stored as they come, and are not read before the file is."""

    def __init__(self, contents: SharedContents, name: str) -> None:
        self.size = 0
        self._contents = contents
        self._name = name
        self._number = 0  # of the next chunk
        self._rest = bytearray()
        self._published = False

    def write(self, data: bytes) -> None:
        self.size += len(data)
        self._rest += data
        while len(self._rest) >= CHUNK:
            self._add(bytes(self._rest[:CHUNK]))
            del self._rest[:CHUNK]

    def publish(self) -> None:
        if self._rest:
            self._add(bytes(self._rest))
            self._rest.clear()
        self._published = True

    def close(self) -> None:
        if self._number and not self._published:
            self._contents.remove([self._name])

    def _add(self, data: bytes) -> None:
        self._contents.add_chunk(self._name, self._number, data)
        self._number += 1


class SharedContents:
    """FileContents. Made to be used from several threads."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock

    def new_draft(self, name: str) -> SharedDraft:
        return SharedDraft(self, name)

    def open(self, name: str) -> BinaryIO:
        if not self.read_slice(name, 0, 0, 1):
            raise FileNotFoundError(name)
        return cast(BinaryIO, io.BufferedReader(ContentReader(self, name), CHUNK))

    def read(self, name: str, offset: int, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            number, start = divmod(offset + len(data), CHUNK)
            part = self.read_slice(name, number, start, min(CHUNK - start, size - len(data)))
            if not part:
                break
            data += part
        if not data:
            raise FileNotFoundError(name)
        return bytes(data)

    def local_path(self, name: str) -> None:
        return None

    def check_space(self, num_bytes: int) -> None:
        """How much room it has is not known here; that it answers is."""
        with self._database.read() as connection:
            connection.execute(text("SELECT 1"))

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            with self._database.write() as connection:
                connection.execute(delete(chunks).where(chunks.c.file_id == name))

    def remove_abandoned_drafts(self) -> None:
        old = chunks.c.stored_at < self._clock() - DRAFT_S
        with self._database.write() as connection:
            connection.execute(delete(chunks).where(old, chunks.c.file_id.not_in(select(files.c.id))))

    def add_chunk(self, name: str, number: int, data: bytes) -> None:
        row = {"file_id": name, "number": number, "data": data, "stored_at": self._clock()}
        with self._database.write() as connection:
            connection.execute(insert(chunks).values(row))

    def read_slice(self, name: str, number: int, start: int, size: int) -> bytes:
        """Empty behind the end."""
        part = type_coerce(func.substr(chunks.c.data, start + 1, size), LargeBinary)
        with self._database.read() as connection:
            found = connection.scalar(select(part).where(chunks.c.file_id == name, chunks.c.number == number))
        return bytes(found or b"")


class ContentReader(io.RawIOBase):
    """A content as a file, from its beginning."""

    def __init__(self, contents: SharedContents, name: str) -> None:
        self._contents = contents
        self._name = name
        self._place = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        number, start = divmod(self._place, CHUNK)
        data = self._contents.read_slice(self._name, number, start, min(CHUNK - start, len(view)))
        view[: len(data)] = data
        self._place += len(data)
        return len(data)
