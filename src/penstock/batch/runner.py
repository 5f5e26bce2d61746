"""Runs the jobs of unfinished batches, ends those whose window is over, and removes expired files. Where servers share
batches, it runs those whose leases this server has (`leases`), and claims those that no server works on."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from penstock.batch.job import BatchJob, Environment
from penstock.batch.records import UNFINISHED, Batch, LeaseLost
from penstock.errors import ModelNotFound, PenstockError, StorageUnavailable

if TYPE_CHECKING:
    from penstock.batch.leases import Leases

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
        self._leases = environment.store.leases
        self._wake = asyncio.Event()
        self._swept = 0  # when files were last looked at
        self._tasks: set[asyncio.Task[None]] = set()
        self._running: dict[str, asyncio.Task[None]] = {}  # by batch

    async def start(self) -> None:
        """Resume unfinished batches."""
        if self._leases is not None:
            self._spawn(self._keep_leases(self._leases))
        else:
            for batch in await self._environment.in_database_thread(self._environment.store.unfinished):
                self._resume(batch)
        self._spawn(self._tick())

    def run(self, batch: Batch) -> None:
        job = self.jobs[batch.id] = BatchJob(batch, self._environment)
        self._running[batch.id] = self._spawn(self._run_job(job))
        self._wake.set()

    def cancel(self, batch_id: str) -> None:
        if (job := self.jobs.get(batch_id)) is not None:
            job.stop("cancelled")

    async def close(self) -> None:
        """Stop all lines; the next start resumes them, or another server does."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._leases is not None:
            with contextlib.suppress(StorageUnavailable):  # they run out by themselves
                await self._environment.in_database_thread(self._leases.release)

    async def remove_deleted(self) -> None:
        """The contents of deleted files that no batch reads any more."""
        environment = self._environment
        names = await environment.in_database_thread(environment.store.drop_deleted)
        await environment.in_file_thread(environment.contents.remove, names)

    def _resume(self, batch: Batch) -> None:
        done = batch.completed + batch.failed
        logger.info("batch %s: resumed, %d of %d lines are done", batch.id, done, batch.total)
        self.run(batch)

    async def _run_job(self, job: BatchJob) -> None:
        try:
            await job.run()
        except LeaseLost:
            self._forget(job)
            logger.warning("batch %s: another server works on it now", job.id)
        except Exception as error:
            reason = error.message if isinstance(error, PenstockError) else repr(error)
            logger.error("batch %s broke off, and goes on in %g s: %s", job.id, RETRY_S, reason)
            if self._leases is not None:
                self._forget(job)  # the lease runs out, and this server or another claims the batch
            else:
                await self._run_again(job)
        else:
            self._forget(job)
            self.ended[job.batch.status] += 1
            await self._remove_deleted_later()

    async def _run_again(self, job: BatchJob) -> None:
        while True:
            await asyncio.sleep(RETRY_S)
            with contextlib.suppress(StorageUnavailable):
                self.run(await self._environment.in_database_thread(self._environment.store.batch, job.id))
                return

    def _forget(self, job: BatchJob) -> None:
        if self.jobs.get(job.id) is job:
            del self.jobs[job.id], self._running[job.id]

    async def _remove_deleted_later(self) -> None:
        with contextlib.suppress(StorageUnavailable):  # the next sweep does
            await self.remove_deleted()

    # --- leases

    async def _keep_leases(self, leases: Leases) -> None:
        from penstock.batch.leases import RENEW_S

        while True:
            try:
                await self.check_leases(leases)
            except PenstockError as error:
                logger.warning("leases of batches are not renewed: %s", error.message)
            except Exception:
                logger.exception("leases of batches are not renewed")
            await asyncio.sleep(RENEW_S)

    async def check_leases(self, leases: Leases) -> None:
        """Renew those of all jobs, follow what other servers have done to their batches, and claim a batch that no
        server works on: one at a time, so that other servers get some."""
        in_database_thread, store = self._environment.in_database_thread, self._environment.store
        jobs = dict(self.jobs)
        found = await in_database_thread(leases.renew, list(jobs))
        for name, (status, held) in found.items():
            if status not in UNFINISHED or self.jobs.get(name) is not jobs[name]:
                continue
            if not held:
                self._running[name].cancel()
                self._forget(jobs[name])
                logger.warning("batch %s: another server works on it now", name)
            elif status == "cancelling":
                jobs[name].stop("cancelled")
        for name in await in_database_thread(leases.free):
            if name in self.jobs or not self._serves(await in_database_thread(store.batch, name)):
                continue
            if await in_database_thread(leases.claim, name):
                self._resume(await in_database_thread(store.batch, name))
                return

    def _serves(self, batch: Batch) -> bool:
        """Whether this server has the model of a batch whose lines are to run."""
        if batch.status != "in_progress" or batch.model is None or self._environment.now() >= batch.expires_at:
            return True
        try:
            self._environment.find_model(batch, batch.model)
        except ModelNotFound:
            return False
        except PenstockError:  # its key is not valid any more: its lines fail with that
            pass
        return True

    # --- clock and load

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
            await environment.in_file_thread(environment.contents.remove_abandoned_drafts)

    async def _tick(self) -> None:
        while True:
            try:
                await self.check()
            except PenstockError as error:
                logger.warning("expired files are not removed: %s", error.message)
            if self.jobs:
                await asyncio.sleep(TICK_S)
            else:
                self._wake.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SWEEP_S):
                        await self._wake.wait()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task
