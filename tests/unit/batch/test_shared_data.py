"""Files and batches that two servers share in one database: SQLite here; PostgreSQL in
tests/end/test_server_shared_stores.py."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from helpers.batch_bench import Bench, lines
from penstock.batch import manager as manager_module
from penstock.batch import shared_contents
from penstock.batch.leases import LEASE_S, Leases
from penstock.batch.records import WINDOW_S, Batch
from penstock.batch.runner import BatchRunner
from penstock.batch.shared_contents import SharedContents
from penstock.batch.shared_data import SharedData
from penstock.database.database import Database, open_database
from penstock.errors import InvalidRequest, ModelNotFound, NotFound, QueueFull, StorageUnavailable

LINES = [f"r{index}" for index in range(6)]


class Two:
    """Two servers over one database, with one clock."""

    def __init__(self, database: Database) -> None:
        self.a, self.b = (
            Bench(Path("/nonexistent"), slots=4, open_data=lambda: SharedData(database, lambda: self.a.now))
            for _ in range(2)
        )

    def pass_time(self, seconds: float) -> None:
        self.a.now += seconds
        self.b.now += seconds

    async def look(self, server: Bench) -> None:
        """As every two seconds."""
        data = await server.manager.open()
        assert server.manager.runner is not None
        assert isinstance(data.store.leases, Leases)
        await server.manager.runner.check_leases(data.store.leases)

    def kill(self, server: Bench) -> None:
        """It does nothing any more."""
        assert server.manager.runner is not None
        for task in list(server.manager.runner._tasks):
            task.cancel()

    async def results(self, batch: Batch) -> list[str]:
        """The lines of its files, as every server sees them."""
        found = []
        for server in (self.a, self.b):
            assert await server.manager.batch("", batch.id) == batch
            files = [await server.read(name) for name in (batch.output_file_id, batch.error_file_id)]
            found.append([one["custom_id"] for file in files for one in file])
        assert found[0] == found[1]
        return sorted(found[0])


@pytest.fixture(autouse=True)
def _looks_only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_: BatchRunner, leases: Leases) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(BatchRunner, "_keep_leases", never)  # its first look may come late on a busy machine


@asynccontextmanager
async def servers(folder: Path) -> AsyncIterator[Two]:
    database = open_database(f"sqlite:///{folder / 'shared.db'}")
    two = Two(database)
    try:
        for server in (two.a, two.b):
            await server.manager.open()
        yield two
    finally:
        for server in (two.a, two.b):
            await server.manager.close()
        database.close()


def test_a_file_of_one_server_is_the_input_of_a_batch_of_the_other(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            file = await two.a.upload(lines(6))
            batch = await two.b.manager.create_batch(
                "", input_file_id=file, endpoint="/v1/chat/completions", metadata=None, output_expires_s=None
            )
            await two.look(two.a)
            batch = await two.a.until(batch.id, "completed")
            assert (two.a.asked, sorted(two.b.asked)) == ([], LINES)
            assert await two.results(batch) == LINES
            await two.b.manager.delete_file("", file)
            with pytest.raises(NotFound):
                await two.a.manager.file("", file)

    asyncio.run(run())


def test_a_killed_server_is_succeeded_by_the_other_without_running_finished_lines_again(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            two.a.gate.clear()
            two.a.answered_at_once = {"r0", "r1"}
            name = await two.a.create(lines(6))
            await two.b.wait_for(name, lambda batch: batch.completed == 2)
            two.pass_time(LEASE_S / 2)
            await two.look(two.a)
            two.kill(two.a)
            two.pass_time(LEASE_S - 1)
            await two.look(two.b)
            assert two.b.asked == []  # the lease still holds
            two.pass_time(2)
            await two.look(two.b)
            batch = await two.b.until(name, "completed")
            assert (batch.completed, batch.failed, sorted(two.b.asked)) == (6, 0, LINES[2:])
            assert await two.results(batch) == LINES

    asyncio.run(run())


def test_a_server_that_was_only_slow_changes_nothing_any_more(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            two.a.gate.clear()
            name = await two.a.create(lines(6))
            async with asyncio.timeout(30):
                while len(two.a.asked) < 3:
                    await asyncio.sleep(0.001)
            two.pass_time(LEASE_S + 1)
            two.b.statuses = {"r0": [400]}
            await two.look(two.b)
            batch = await two.b.until(name, "completed")
            two.a.gate.set()  # its lines are answered now
            async with asyncio.timeout(30):
                while two.a.manager.runner is None or two.a.manager.runner.jobs:
                    await asyncio.sleep(0.001)
            assert await two.results(batch) == LINES
            assert (batch.completed, batch.failed) == (5, 1)
            assert batch.usage.input_tokens == 5 * 3

    asyncio.run(run())


def test_a_server_stops_what_another_one_has_taken_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            two.a.gate.clear()
            two.b.gate.clear()
            name = await two.a.create(lines(6))
            await two.a.until(name, "in_progress")
            two.pass_time(LEASE_S + 1)
            await two.look(two.b)
            await two.look(two.a)
            assert two.a.manager.runner is not None
            assert two.b.manager.runner is not None
            assert (list(two.a.manager.runner.jobs), list(two.b.manager.runner.jobs)) == ([], [name])
            async with asyncio.timeout(30):
                while two.a.manager.limiters.running:  # its lines are cancelled
                    await asyncio.sleep(0.001)
            two.b.gate.set()
            assert await two.results(await two.b.until(name, "completed")) == LINES

    asyncio.run(run())


def test_a_batch_is_cancelled_through_any_server(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            two.a.gate.clear()
            two.a.answered_at_once = {"r0"}
            name = await two.a.create(lines(6))
            await two.a.wait_for(name, lambda batch: batch.completed == 1)
            assert (await two.b.manager.cancel("", name)).status == "cancelling"
            await two.look(two.a)
            batch = await two.b.until(name, "cancelled")
            assert [one["custom_id"] for one in await two.b.read(batch.output_file_id)] == ["r0"]
            assert await two.results(batch) == LINES
            with pytest.raises(InvalidRequest, match="cancelled"):
                await two.a.manager.cancel("", name)

    asyncio.run(run())


def test_a_cancelled_batch_of_a_killed_server_is_ended_by_another(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            two.a.gate.clear()
            name = await two.a.create(lines(6))
            await two.a.until(name, "in_progress")
            two.kill(two.a)
            await two.b.manager.cancel("", name)
            two.pass_time(LEASE_S + 1)
            await two.look(two.b)
            assert await two.results(await two.b.until(name, "cancelled")) == LINES
            assert two.b.asked == []

    asyncio.run(run())


def test_a_server_that_stops_leaves_its_batches_to_others_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            two.a.gate.clear()
            names = [await two.a.create(lines(6)) for _ in range(2)]
            await two.a.manager.close()
            await two.look(two.b)
            assert two.b.manager.runner is not None
            assert list(two.b.manager.runner.jobs) == names[:1]  # one per look: others may want some
            await two.look(two.b)
            for name in names:
                await two.b.until(name, "completed")

    asyncio.run(run())


def test_of_two_servers_that_claim_a_batch_one_gets_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            for server in (two.a, two.b):
                server.gate.clear()
            name = await two.a.create(lines(1))
            await two.a.until(name, "in_progress")  # no transaction of the killed one is under way
            two.kill(two.a)
            two.a.manager.runner.jobs.clear()  # type: ignore[union-attr]
            two.pass_time(LEASE_S + 1)
            await asyncio.gather(*(two.look(server) for server in (two.a, two.b, two.a, two.b)))
            jobs = [job for server in (two.a, two.b) for job in server.manager.runner.jobs]  # type: ignore[union-attr]
            assert jobs == [name]

    asyncio.run(run())


def test_a_server_without_the_model_leaves_a_batch_alone_until_its_window_is_over(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            two.a.gate.clear()
            name = await two.a.create(lines(6))
            await two.a.until(name, "in_progress")
            two.kill(two.a)
            two.pass_time(LEASE_S + 1)

            def has_no_models(_: Batch, name: str) -> str:
                raise ModelNotFound(name)

            runner = two.b.manager.runner
            assert runner is not None
            environment = runner._environment
            runner._environment = type(environment)(
                **{field: getattr(environment, field) for field in type(environment).__struct_fields__}
                | {"find_model": has_no_models}
            )
            await two.look(two.b)
            assert not runner.jobs
            two.pass_time(WINDOW_S)
            await two.look(two.b)
            await runner.check()
            assert await two.results(await two.b.until(name, "expired")) == LINES

    asyncio.run(run())


def test_the_bound_of_unfinished_batches_holds_for_all_servers_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "MAX_UNFINISHED", 2)

    async def run() -> None:
        async with servers(tmp_path) as two:
            for server in (two.a, two.b):
                server.gate.clear()
                await server.create(lines(1))
            for server in (two.a, two.b):
                with pytest.raises(QueueFull, match="2 batches"):
                    await server.create(lines(1))
            await two.b.create(lines(1), tenant="bob")

    asyncio.run(run())


def test_a_job_whose_database_goes_away_goes_on_when_it_is_back(tmp_path: Path) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            runner = two.a.manager.runner
            assert runner is not None
            two.a.gate.clear()
            name = await two.a.create(lines(6))
            await two.a.until(name, "in_progress")
            environment, away = runner._environment, True

            async def fails(call: Any, *arguments: Any) -> Any:
                if away:
                    raise StorageUnavailable("away")
                return await environment.in_database_thread(call, *arguments)

            changed = type(environment)(
                **{field: getattr(environment, field) for field in type(environment).__struct_fields__}
                | {"in_database_thread": fails}
            )
            runner._environment = changed
            runner.jobs[name]._environment = runner.jobs[name]._results._environment = changed
            two.a.gate.set()
            async with asyncio.timeout(30):
                while runner.jobs:
                    await asyncio.sleep(0.001)
            with pytest.raises(StorageUnavailable):
                await two.look(two.a)
            away = False
            two.pass_time(LEASE_S + 1)
            await two.look(two.a)
            assert await two.results(await two.a.until(name, "completed")) == LINES

    asyncio.run(run())


@pytest.mark.parametrize("calls", range(10))
def test_a_server_killed_at_any_transaction_is_succeeded_and_each_line_is_there_once(
    tmp_path: Path, calls: int
) -> None:
    async def run() -> None:
        async with servers(tmp_path) as two:
            two.a.statuses = {"r2": [400]}
            left, runner, name = calls, two.a.manager.runner, await two.a.upload(lines(6))
            assert runner is not None
            environment = runner._environment

            async def until_killed(call: Any, *arguments: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    two.kill(two.a)
                    await asyncio.Event().wait()
                return await environment.in_database_thread(call, *arguments)

            runner._environment = type(environment)(
                **{field: getattr(environment, field) for field in type(environment).__struct_fields__}
                | {"in_database_thread": until_killed}
            )
            batch = await two.a.manager.create_batch(
                "", input_file_id=name, endpoint="/v1/chat/completions", metadata=None, output_expires_s=None
            )
            async with asyncio.timeout(30):
                while left >= 0 and runner.jobs:
                    await asyncio.sleep(0.001)
            runner._environment = environment
            two.pass_time(LEASE_S + 1)
            await two.look(two.b)
            batch = await two.b.until(batch.id, "completed")
            assert await two.results(batch) == LINES
            assert batch.completed + batch.failed == 6

    asyncio.run(run())


def test_contents_are_read_across_chunks_and_drafts_leave_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_contents, "CHUNK", 10)
    database, now = open_database(f"sqlite:///{tmp_path / 'shared.db'}"), 0.0
    contents = SharedContents(database, lambda: now)
    text = bytes(range(65, 65 + 35))
    draft = contents.new_draft("file-a")
    for start in range(0, 35, 7):
        draft.write(text[start : start + 7])
    draft.publish()
    draft.close()
    assert draft.size == 35
    with contents.open("file-a") as file:
        assert (file.read(3), file.read()) == (text[:3], text[3:])
    for offset, size in ((0, 35), (0, 10), (9, 2), (5, 25), (30, 5), (34, 100)):
        assert contents.read("file-a", offset, size) == text[offset : offset + size]
    broken_off = contents.new_draft("file-b")
    broken_off.write(text)
    broken_off.close()
    for read in (lambda: contents.open("file-b"), lambda: contents.read("file-b", 0, 1)):
        with pytest.raises(FileNotFoundError):
            read()
    killed = contents.new_draft("file-c")
    killed.write(text)
    now = shared_contents.DRAFT_S
    contents.remove_abandoned_drafts()
    assert contents.read("file-c", 0, 5) == text[:5]  # it may still be written
    now += 1
    contents.remove_abandoned_drafts()
    with pytest.raises(FileNotFoundError):
        contents.open("file-c")
    database.close()
