"""Runs the jobs of all unfinished batches, ends those whose window is over, and removes expired files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from penstock.batch.job import BatchJob, Environment
from penstock.batch.records import Batch
from penstock.errors import PenstockError

logger = logging.getLogger(__name__)

TICK_S = 0.1  # between looks at the load, while there are batches
SWEEP_S = 60.0  # between looks for expired files
RETRY_S = 10.0  # after a job broke off, such as on a full disk


class BatchRunner:
    """Belongs to one event loop."""

    def __init__(self, environment: Environment) -> None:
        self.jobs: dict[str, BatchJob] = {}
        self.ended: Counter[str] = Counter()  # batches since the start, by status
        self.lines = environment.lines
        self._environment = environment
        self._wake = asyncio.Event()
        self._swept = 0  # when files were last looked at
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Resume all unfinished batches."""
        store = self._environment.store
        for batch in await self._environment.in_database_thread(store.unfinished):
            logger.info("batch %s: resumed, %d of %d lines are done", batch.id, _done(batch), batch.total)
            self.run(batch)
        self._spawn(self._tick())

    def run(self, batch: Batch) -> None:
        self.jobs[batch.id] = BatchJob(batch, self._environment)
        self._spawn(self._run_job(self.jobs[batch.id]))
        self._wake.set()

    def cancel(self, batch_id: str) -> None:
        if (job := self.jobs.get(batch_id)) is not None:
            job.stop("cancelled")

    async def close(self) -> None:
        """Stop all lines; the next start resumes them."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def remove_deleted(self) -> None:
        """The contents of deleted files that no batch reads any more."""
        environment = self._environment
        names = await environment.in_database_thread(environment.store.drop_deleted)
        await environment.in_file_thread(environment.area.remove, names)

    async def _run_job(self, job: BatchJob) -> None:
        try:
            await job.run()
        except Exception as error:
            reason = error.message if isinstance(error, PenstockError) else repr(error)
            logger.error("batch %s broke off, and goes on in %g s: %s", job.id, RETRY_S, reason)
            await asyncio.sleep(RETRY_S)
            self.run(await self._environment.in_database_thread(self._environment.store.batch, job.id))
        else:
            del self.jobs[job.id]
            self.ended[job.batch.status] += 1
            await self.remove_deleted()

    async def check(self) -> None:
        """Look at the clock and at the load."""
        environment = self._environment
        now = environment.now()
        for job in self.jobs.values():
            if now >= job.batch.expires_at:
                job.stop("expired")
        environment.limiters.admit()
        if abs(now - self._swept) >= SWEEP_S:
            self._swept = now
            await environment.in_database_thread(environment.store.expire_files, now)
            await self.remove_deleted()

    async def _tick(self) -> None:
        while True:
            await self.check()
            if self.jobs:
                await asyncio.sleep(TICK_S)
            else:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S):
                        await self._wake.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _done(batch: Batch) -> int:
    return batch.completed + batch.failed
