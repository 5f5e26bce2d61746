"""Files and batches of a server, for its routes. The data folder belongs to one server at a time.

Nothing is opened before the first call, unless there is a database of an earlier run: then its batches are resumed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from penstock.batch.data_folder import DATABASE, DataFolder
from penstock.batch.job import Environment, FindModelOf
from penstock.batch.limiter import Capacity, ModelLimiters
from penstock.batch.records import WINDOW_S, Batch, Dispatch, Purpose, StoredFile, new_id
from penstock.batch.runner import BatchRunner
from penstock.errors import InvalidRequest, QueueFull, ShuttingDown, StorageUnavailable

logger = logging.getLogger(__name__)

MAX_UNFINISHED = 100  # batches of a tenant
RETRY_S = 1.0  # between two attempts to open the data folder


class BatchManager:
    """Belongs to one event loop."""

    def __init__(
        self,
        root: Path,
        *,
        dispatch: Dispatch,
        capacity: Callable[[str], Capacity | None],
        find_model: FindModelOf,
        max_line: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`root` is the data folder, `capacity` as in ModelLimiters, `max_line` in bytes."""
        self.root = root
        self.runner: BatchRunner | None = None  # once it is open
        self.limiters = ModelLimiters(capacity)
        self._dispatch = dispatch
        self._find_model = find_model
        self._max_line = max_line
        self._clock = clock
        self._folder: DataFolder | None = None
        self._opening = asyncio.Lock()
        self._resuming: asyncio.Task[None] | None = None
        self._closed = False

    # --- life

    def start(self) -> None:
        """Resume the batches of an earlier run, if there was one."""
        if (self.root / DATABASE).exists():
            self._resuming = asyncio.get_running_loop().create_task(self._resume())

    async def close(self) -> None:
        """Stop all lines, for good: the next server resumes them."""
        self._closed = True
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
        if self.runner is not None:
            await self.runner.close()
        if self._folder is not None:
            await asyncio.to_thread(self._folder.close)
        self.runner = self._folder = None

    async def open(self) -> DataFolder:
        """Raises StorageUnavailable, such as while another server has the folder; ShuttingDown after `close`."""
        async with self._opening:
            if self._closed:
                raise ShuttingDown("the server is shutting down and accepts no more requests")
            if self._folder is None:
                folder = await asyncio.to_thread(DataFolder, self.root)
                self.runner = self._new_runner(folder)
                self._folder = folder
                await self.runner.start()
            return self._folder

    def _new_runner(self, folder: DataFolder) -> BatchRunner:
        environment = Environment(
            store=folder.store,
            area=folder.area,
            dispatch=self._dispatch,
            limiters=self.limiters,
            find_model=self._find_model,
            max_line=self._max_line,
            now=self._now,
            lines=Counter(),
            in_database_thread=folder.in_database_thread,
            in_file_thread=folder.in_file_thread,
        )
        return BatchRunner(environment)

    async def _resume(self) -> None:
        told = False
        while True:
            try:
                await self.open()
                return
            except StorageUnavailable as error:  # helper processes of a server that was killed hold it for a moment
                if not told:
                    logger.warning("batches in %s are not resumed: %s", self.root, error.message)
                told = True
                await asyncio.sleep(RETRY_S)

    # --- files

    async def add_file(self, tenant: str, *, name: str, filename: str, size: int, lifetime_s: int) -> StoredFile:
        """Of a content that has been published under the id `name`."""
        folder, now = await self.open(), self._now()
        file = StoredFile(
            id=name, tenant=tenant, purpose="batch", filename=filename, bytes=size, created_at=now,
            expires_at=now + lifetime_s,
        )  # fmt: skip
        await folder.in_database_thread(folder.store.add_file, file)
        return file

    async def file(self, tenant: str, name: str) -> StoredFile:
        folder = await self.open()
        return await folder.in_database_thread(folder.store.file, tenant, name)

    async def files(
        self, tenant: str, *, purpose: Purpose | None, after: str | None, limit: int, order: str
    ) -> tuple[list[StoredFile], bool]:
        folder = await self.open()

        def page() -> tuple[list[StoredFile], bool]:
            return folder.store.files(tenant, purpose=purpose, after=after, limit=limit, order=order)

        return await folder.in_database_thread(page)

    async def delete_file(self, tenant: str, name: str) -> None:
        """A batch that reads it goes on."""
        folder = await self.open()
        await folder.in_database_thread(folder.store.delete_file, tenant, name)
        assert self.runner is not None
        await self.runner.remove_deleted()

    # --- batches

    async def create_batch(
        self,
        tenant: str,
        *,
        key: str = "",
        input_file_id: str,
        endpoint: str,
        metadata: dict[str, str] | None,
        output_expires_s: int | None,
    ) -> Batch:
        folder, now = await self.open(), self._now()
        batch = Batch(
            id=new_id("batch_"), tenant=tenant, key=key, endpoint=endpoint, input_file_id=input_file_id,
            status="validating", created_at=now, expires_at=now + WINDOW_S, metadata=metadata,
            output_expires_s=output_expires_s,
        )  # fmt: skip

        def add() -> None:
            file = folder.store.file(tenant, input_file_id, param="input_file_id")
            if file.purpose != "batch":
                raise InvalidRequest(
                    f"the file has the purpose {file.purpose!r}; upload one with purpose 'batch'", param="input_file_id"
                )
            if len(folder.store.unfinished(tenant)) >= MAX_UNFINISHED:
                raise QueueFull(f"{MAX_UNFINISHED} batches are unfinished already; wait for one, or cancel it")
            folder.store.add_batch(batch)

        await folder.in_database_thread(add)
        assert self.runner is not None
        self.runner.run(batch)
        return batch

    async def batch(self, tenant: str, name: str) -> Batch:
        folder = await self.open()
        return await folder.in_database_thread(folder.store.batch, name, tenant)

    async def batches(self, tenant: str, *, after: str | None, limit: int) -> tuple[list[Batch], bool]:
        folder = await self.open()
        return await folder.in_database_thread(lambda: folder.store.batches(tenant, after=after, limit=limit))

    async def cancel(self, tenant: str, name: str) -> Batch:
        folder = await self.open()
        batch = await folder.in_database_thread(folder.store.cancel, tenant, name, self._now())
        assert self.runner is not None
        self.runner.cancel(name)
        return batch

    def _now(self) -> int:
        return int(self._clock())
