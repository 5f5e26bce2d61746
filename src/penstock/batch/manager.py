"""Files and batches, for the routes of a server: its own in the data folder, or those in a database that servers share.

Nothing is opened before the first call, unless there may be batches to resume.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable

from penstock.batch.job import Environment, FindModelOf
from penstock.batch.limiter import Capacity, ModelLimiters
from penstock.batch.protocol import BatchData
from penstock.batch.records import WINDOW_S, Batch, Dispatch, Purpose, StoredFile, new_id
from penstock.batch.runner import BatchRunner
from penstock.errors import InvalidRequest, ShuttingDown, StorageUnavailable

logger = logging.getLogger(__name__)

MAX_UNFINISHED = 100  # batches of a tenant
RETRY_S = 1.0  # between two attempts to open them


class BatchManager:
    """Belongs to one event loop."""

    def __init__(
        self,
        open_data: Callable[[], BatchData],
        *,
        may_have_batches: Callable[[], bool],
        dispatch: Dispatch,
        capacity: Callable[[str], Capacity | None],
        find_model: FindModelOf,
        max_line: int,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`open_data` blocks and raises StorageUnavailable; `may_have_batches` says whether it is called at the start.
        `capacity` is as in ModelLimiters, `max_line` in bytes."""
        self.runner: BatchRunner | None = None  # once it is open
        self.limiters = ModelLimiters(capacity)
        self._dispatch = dispatch
        self._find_model = find_model
        self._max_line = max_line
        self._clock = clock
        self._open_data = open_data
        self._may_have_batches = may_have_batches
        self._data: BatchData | None = None
        self._opening = asyncio.Lock()
        self._resuming: asyncio.Task[None] | None = None
        self._closed = False

    # --- life

    def start(self) -> None:
        """Resume batches, if there may be any."""
        if self._may_have_batches():
            self._resuming = asyncio.get_running_loop().create_task(self._resume())

    async def close(self) -> None:
        """Stop all lines, for good: another server resumes them, or the next one."""
        self._closed = True
        if self._resuming is not None:
            self._resuming.cancel()
            await asyncio.gather(self._resuming, return_exceptions=True)
        if self.runner is not None:
            await self.runner.close()
        if self._data is not None:
            await asyncio.to_thread(self._data.close)
        self.runner = self._data = None

    async def open(self) -> BatchData:
        """Raises StorageUnavailable, such as while another server has the data folder; ShuttingDown after `close`."""
        async with self._opening:
            if self._closed:
                raise ShuttingDown("the server is shutting down and accepts no more requests")
            if self._data is None:
                data = await asyncio.to_thread(self._open_data)
                self.runner = self._new_runner(data)
                self._data = data
                await self.runner.start()
            return self._data

    def _new_runner(self, data: BatchData) -> BatchRunner:
        environment = Environment(
            store=data.store,
            contents=data.contents,
            dispatch=self._dispatch,
            limiters=self.limiters,
            find_model=self._find_model,
            max_line=self._max_line,
            now=self._now,
            lines=Counter(),
            in_database_thread=data.in_database_thread,
            in_file_thread=data.in_file_thread,
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
                    logger.warning("batches are not resumed: %s", error.message)
                told = True
                await asyncio.sleep(RETRY_S)

    # --- files

    async def add_file(self, tenant: str, *, name: str, filename: str, size: int, lifetime_s: int) -> StoredFile:
        """Of a content that has been published under the id `name`."""
        data, now = await self.open(), self._now()
        file = StoredFile(
            id=name, tenant=tenant, purpose="batch", filename=filename, bytes=size, created_at=now,
            expires_at=now + lifetime_s,
        )  # fmt: skip
        await data.in_database_thread(data.store.add_file, file)
        return file

    async def file(self, tenant: str, name: str) -> StoredFile:
        data = await self.open()
        return await data.in_database_thread(data.store.file, tenant, name)

    async def files(
        self, tenant: str, *, purpose: Purpose | None, after: str | None, limit: int, order: str
    ) -> tuple[list[StoredFile], bool]:
        data = await self.open()

        def page() -> tuple[list[StoredFile], bool]:
            return data.store.files(tenant, purpose=purpose, after=after, limit=limit, order=order)

        return await data.in_database_thread(page)

    async def delete_file(self, tenant: str, name: str) -> None:
        """A batch that reads it goes on."""
        data = await self.open()
        await data.in_database_thread(data.store.delete_file, tenant, name)
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
        data, now = await self.open(), self._now()
        batch = Batch(
            id=new_id("batch_"), tenant=tenant, key=key, endpoint=endpoint, input_file_id=input_file_id,
            status="validating", created_at=now, expires_at=now + WINDOW_S, metadata=metadata,
            output_expires_s=output_expires_s,
        )  # fmt: skip

        def add() -> None:
            file = data.store.file(tenant, input_file_id, param="input_file_id")
            if file.purpose != "batch":
                raise InvalidRequest(
                    f"the file has the purpose {file.purpose!r}; upload one with purpose 'batch'", param="input_file_id"
                )
            data.store.add_batch(batch, most=MAX_UNFINISHED)

        await data.in_database_thread(add)
        assert self.runner is not None
        self.runner.run(batch)
        return batch

    async def batch(self, tenant: str, name: str) -> Batch:
        data = await self.open()
        return await data.in_database_thread(data.store.batch, name, tenant)

    async def batches(self, tenant: str, *, after: str | None, limit: int) -> tuple[list[Batch], bool]:
        data = await self.open()
        return await data.in_database_thread(lambda: data.store.batches(tenant, after=after, limit=limit))

    async def cancel(self, tenant: str, name: str) -> Batch:
        data = await self.open()
        batch = await data.in_database_thread(data.store.cancel, tenant, name, self._now())
        assert self.runner is not None
        self.runner.cancel(name)
        return batch

    def _now(self) -> int:
        return int(self._clock())
