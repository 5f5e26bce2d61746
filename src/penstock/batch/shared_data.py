"""Files and batches of several servers, in one database."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from penstock.batch.protocol import Answer, FileContents
from penstock.database.threads import DatabaseThreads

if TYPE_CHECKING:
    from penstock.database.database import Database

DATABASE_THREADS = 3  # one of them may have a long transaction: leases are renewed meanwhile
FILE_THREADS = 3


class SharedData:
    """BatchData. The database belongs to the server, not to this."""

    def __init__(self, database: Database, clock: Callable[[], float] = time.time) -> None:
        from penstock.batch.leases import Leases  # with SQLAlchemy
        from penstock.batch.shared_contents import SharedContents
        from penstock.batch.store import BatchStore

        worker = f"{socket.gethostname()}/{os.getpid()}/{secrets.token_hex(4)}"
        self.contents: FileContents = SharedContents(database, clock)
        self.store = BatchStore(database, Leases(database, worker, clock))
        self._database_threads = DatabaseThreads(DATABASE_THREADS, "batch-database")
        self._file_threads = ThreadPoolExecutor(FILE_THREADS, thread_name_prefix="batch-files")

    async def in_database_thread(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        return await self._database_threads.run(call, *arguments)

    async def in_file_thread(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        return await asyncio.get_running_loop().run_in_executor(self._file_threads, call, *arguments)

    def close(self) -> None:
        self._file_threads.shutdown(wait=False, cancel_futures=True)
        self._database_threads.close()
