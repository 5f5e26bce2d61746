"""Writes usage records from a thread, in groups: those that come while a commit is under way share the next one."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

from penstock.errors import LedgerUnavailable, StorageUnavailable
from penstock.gateway.ledger.record import UsageRecord

if TYPE_CHECKING:
    from penstock.gateway.ledger.queries import UsageQuery, UsageSum
    from penstock.gateway.ledger.store import UsageStore
    from penstock.gateway.limits.account import Account
    from penstock.gateway.limits.limiter import Settlement, Spend

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

MAX_GROUP = 512  # records of one commit
MAX_BACKLOG = 100_000  # records that wait for a database that is away: some 50 MB
PROBE_S = 1.0  # between two attempts to reach it
TRIES = 2  # of a commit: a connection that has been closed meanwhile fails once
PAUSE_S = 0.02  # between two commits: of a busy server they hold more records each, which saves CPU time
CLOSING_S = 15.0  # for the last records of a server that stops

Waiting = tuple[UsageRecord, "asyncio.Future[None] | None"]


class Ledger:
    """Belongs to one event loop, which it never blocks."""

    def __init__(self, store: UsageStore) -> None:
        self._store = store
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="ledger")
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="usage")  # a long query delays no commit
        self._queue: deque[Waiting] = deque()
        self._committing: asyncio.Task[None] | None = None
        self._next = 0.0  # when the next commit may begin
        self._closing = False
        self.available = True  # the last commit succeeded
        self.commits = 0
        self.records = 0  # written
        self.failures = 0  # commits that failed
        self.dropped = 0  # records that no database took, and that were given up

    @property
    def backlog(self) -> int:
        """Records that are not written yet."""
        return len(self._queue)

    async def write(self, record: UsageRecord) -> None:
        """Returns when it is committed. Raises LedgerUnavailable if it cannot be: `keep` tries again later."""
        written = asyncio.get_running_loop().create_future()
        self._queue.append((record, written))
        self._commit_soon()
        await written

    def keep(self, record: UsageRecord) -> None:
        """Write it when that is possible; nobody waits for it."""
        if len(self._queue) >= MAX_BACKLOG:
            self._drop(1)
            return
        self._queue.append((record, None))
        self._commit_soon()

    async def settled_since(self, time: float, account: Account | None = None) -> list[Settlement]:
        """Requests that ended since then (Unix time), oldest first."""
        return await self._read(lambda: self._store.settled_since(time, account))

    async def spend(self, now: float, account: Account | None = None) -> list[Spend]:
        """What keys and tenants have spent on the UTC day and in the month of `now`."""
        return await self._read(lambda: self._store.spend(now, account))

    async def spend_by_minute(self, since: float) -> list[tuple[int, str, int]]:
        """Minutes since 1970, tenants and micro-dollars."""
        return await self._read(lambda: self._store.spend_by_minute(since))

    async def sums(self, query: UsageQuery) -> list[UsageSum]:
        return await self._read(lambda: self._store.sums(query))

    async def close(self) -> None:
        """Write what is left, for a while."""
        self._closing = True
        try:
            async with asyncio.timeout(CLOSING_S):
                while self._committing is not None and (self._queue or self.available):
                    await asyncio.wait({self._committing})
                await asyncio.get_running_loop().run_in_executor(self._writer, self._store.close)
        except TimeoutError:
            pass
        if self._committing is not None:
            self._committing.cancel()
        if self._queue:
            self._drop(len(self._queue))
        self._writer.shutdown(wait=False, cancel_futures=True)
        self._reader.shutdown(wait=False, cancel_futures=True)

    async def _read(self, query: Callable[[], Result]) -> Result:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._reader, query)
        except StorageUnavailable as error:
            raise LedgerUnavailable(error.message) from None

    def _commit_soon(self) -> None:
        if self._committing is None:
            self._committing = asyncio.get_running_loop().create_task(self._commit_all())

    async def _commit_all(self) -> None:
        """Until nothing waits, and the database answers."""
        try:
            while self._queue or not self.available:
                if (wait_s := self._next - time.monotonic()) > 0 and not self._closing:
                    await asyncio.sleep(wait_s)
                group = list(itertools.islice(self._queue, MAX_GROUP))
                if not await self._commit(group):
                    await asyncio.sleep(PROBE_S)
        finally:
            self._committing = None

    async def _commit(self, group: list[Waiting]) -> bool:
        records = [record for record, _ in group]
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._writer, self._add, records)
        except Exception as error:
            self._remove(group)
            self._fail(group, error)
            return False
        self._remove(group)
        self._next = time.monotonic() + PAUSE_S
        self.commits += 1
        self.records += len(records)
        if not self.available:
            self.available = True
            logger.info("the ledger can be written again")
        for _, written in group:
            if written is not None and not written.done():
                written.set_result(None)
        return True

    def _remove(self, group: list[Waiting]) -> None:
        for _ in group:
            self._queue.popleft()

    def _add(self, records: list[UsageRecord]) -> None:
        """In the thread."""
        for trial in range(TRIES):
            try:
                self._store.add(records) if records else self._store.check()
                return
            except Exception:
                if trial == TRIES - 1:
                    raise

    def _fail(self, group: list[Waiting], error: Exception) -> None:
        """Tell those who wait; keep the records of which nobody does."""
        self.failures += 1
        if self.available:
            self.available = False
            logger.error("the ledger cannot be written: %s", _reason(error))
        unclaimed = [one for one in group if one[1] is None]
        self._queue.extendleft(reversed(unclaimed))
        for _, written in group:
            if written is not None and not written.done():
                written.set_exception(LedgerUnavailable("the usage of this request could not be recorded"))

    def _drop(self, count: int) -> None:
        if not self.dropped:
            logger.error("usage records are given up: the ledger has been unavailable for too long")
        self.dropped += count


def _reason(error: Exception) -> str:
    """The driver's own words, without the statement and its values."""
    return f"{type(error).__name__}: {getattr(error, 'orig', None) or error}"
