"""One batch on its way: validate the input file, run the lines, write the output files. All state is in the store, so a
job can break off at any point, and another one takes over from there."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from penstock.batch.input_file import InputFile, body_of
from penstock.batch.limiter import ModelLimiters
from penstock.batch.output_files import output_line, usage_of, write_files
from penstock.batch.protocol import FileContents
from penstock.batch.records import Batch, Dispatch, End, InputError, Line, LineRequest, Result, new_id

if TYPE_CHECKING:
    from penstock.batch.store import BatchStore

logger = logging.getLogger(__name__)

Answer = TypeVar("Answer")
FindModelOf = Callable[[Batch, str], str]  # as `input_file.FindModel`, among the models of the batch's key

PORTION = 256  # lines read from the store at once
QUEUE_FULL, UPSTREAM_FAILED, ENGINE_DIED, UPSTREAM_TIMEOUT = 429, 502, 503, 504
FAILURES = (UPSTREAM_FAILED, ENGINE_DIED, UPSTREAM_TIMEOUT)
MAX_ATTEMPTS = 3  # of a line at which the engine dies or the upstream fails
RETRY_S, LONGEST_RETRY_S = 1.0, 60.0  # between two attempts: doubled each time


class Environment(msgspec.Struct, frozen=True):
    """What all jobs share."""

    store: BatchStore
    contents: FileContents
    dispatch: Dispatch
    limiters: ModelLimiters
    find_model: FindModelOf
    max_line: int  # bytes
    now: Callable[[], int]
    lines: Counter[str]  # that have run since the start, by result
    in_database_thread: Callable[..., Awaitable[Any]]
    in_file_thread: Callable[..., Awaitable[Any]]


class BatchJob:
    def __init__(self, batch: Batch, environment: Environment) -> None:
        self.id = batch.id
        self.batch = batch
        self._environment = environment
        self._end: End | None = batch.end  # why it stops; None while it goes on
        self._stopped = asyncio.Event()
        self._results = ResultWriter(batch.id, environment)

    def stop(self, end: End) -> None:
        """End the batch before all lines have run: what runs is cancelled, what has run is kept."""
        if self._end is None:
            self._end = end
            self._stopped.set()

    async def run(self) -> None:
        environment, store = self._environment, self._environment.store
        if self.batch.status == "validating" and self._end is None:
            await self._validate()
            self.batch = await self._in_database(store.batch, self.id)
            if self.batch.status == "failed":
                return
        if self.batch.status == "in_progress" and self._end is None:
            await self._run_lines()
            await self._results.flush()
        self.batch = await self._in_database(store.finalize, self.id, self._end or "completed", environment.now())
        now = environment.now()
        files = await environment.in_file_thread(write_files, self.batch, store, environment.contents, now)
        await self._in_database(store.finish, self.id, *files, now)
        self.batch = await self._in_database(store.batch, self.id)
        counts = (self.batch.completed, self.batch.failed, self.batch.total)
        logger.info("batch %s: %s; %d lines completed, %d failed, of %d", self.id, self.batch.status, *counts)

    async def _validate(self) -> None:
        environment, store, batch = self._environment, self._environment.store, self.batch

        def read() -> InputFile:
            find_model = partial(environment.find_model, batch)
            with environment.contents.open(batch.input_file_id) as file:
                return InputFile(file, batch.endpoint, max_line=environment.max_line, find_model=find_model)

        try:
            found: InputFile = await environment.in_file_thread(read)
        except FileNotFoundError:
            errors = [InputError("file_not_found", "the input file was deleted", "input_file_id")]
            await self._in_database(store.fail, self.id, errors, environment.now())
            return
        if found.errors:
            await self._in_database(store.fail, self.id, found.errors, environment.now())
        else:
            await self._in_database(store.start, self.id, found.lines, found.model, environment.now())

    async def _run_lines(self) -> None:
        """Until all lines have run, or `stop`."""
        running = asyncio.create_task(self._start_lines())
        stopping = asyncio.create_task(self._stopped.wait())
        try:
            await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        finally:
            for task in (running, stopping):
                task.cancel()
            await asyncio.gather(running, stopping, return_exceptions=True)

    async def _start_lines(self) -> None:
        store, after = self._environment.store, 0
        async with asyncio.TaskGroup() as tasks:
            while lines := await self._in_database(store.pending, self.id, after, PORTION):
                for line in lines:
                    limiter = self._environment.limiters.of(line.model)
                    await limiter.acquire(self.batch.tenant)
                    task = tasks.create_task(self._run_line(line))
                    task.add_done_callback(lambda _, limiter=limiter: limiter.release())  # type: ignore[misc]
                after = lines[-1].number

    async def _run_line(self, line: Line) -> None:
        read, place = self._environment.contents.read, (self.batch.input_file_id, line.offset, line.size)
        raw: bytes = await self._environment.in_file_thread(read, *place)
        await self._results.write(await self._answer(line, body_of(raw)))

    async def _answer(self, line: Line, body: bytes) -> Result:
        limiter, failures, wait_s = self._environment.limiters.of(line.model), 0, RETRY_S
        while True:
            request = LineRequest(self.batch, new_id("req-"), body, line.number)
            answer = await self._environment.dispatch(request)
            status = answer.status
            # An upstream that failed too often is not asked for a while, and that says nothing about the line.
            waits = status == QUEUE_FULL or (status == UPSTREAM_FAILED and answer.says_when)
            failures += status in FAILURES and not waits
            if not (waits or status in FAILURES) or failures >= MAX_ATTEMPTS:
                break
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_RETRY_S)
            while limiter.limit() < 1:  # the engine restarts, or has too much to do
                await asyncio.sleep(RETRY_S)
        output = output_line(line.custom_id, status, request.request_id, answer.body)
        failed = not 200 <= status < 300
        self._environment.lines["failed" if failed else "completed"] += 1
        return Result(line.number, output, failed, usage_of(answer.body))

    async def _in_database(self, call: Callable[..., Answer], *arguments: Any) -> Answer:
        answer: Answer = await self._environment.in_database_thread(call, *arguments)
        return answer


class ResultWriter:
    """Stores results in groups: what comes while a transaction is under way goes into the next one."""

    def __init__(self, batch_id: str, environment: Environment) -> None:
        self._batch_id = batch_id
        self._environment = environment
        self._group: list[Result] = []
        self._next: asyncio.Task[None] | None = None  # writes the group
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = asyncio.Lock()

    async def write(self, result: Result) -> None:
        """Durable when this returns."""
        self._group.append(result)
        if self._next is None:
            self._next = asyncio.create_task(self._write_group())
            self._tasks.add(self._next)
            self._next.add_done_callback(self._tasks.discard)
        await asyncio.shield(self._next)

    async def flush(self) -> None:
        """Wait for what was given to `write`, also by tasks that were cancelled since."""
        await asyncio.gather(*self._tasks)

    async def _write_group(self) -> None:
        async with self._writing:
            group, self._group, self._next = self._group, [], None
            await self._environment.in_database_thread(self._environment.store.record, self._batch_id, group)
