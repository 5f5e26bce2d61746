"""Batches from creation to their files, with a stub for the engine and a fake clock."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from helpers.batch_bench import Bench, bench, lines
from penstock.batch import job as job_module
from penstock.batch import manager as manager_module
from penstock.batch.limiter import Capacity
from penstock.batch.records import WINDOW_S, Batch, new_id
from penstock.errors import InvalidRequest, NotFound, QueueFull, ShuttingDown, StorageUnavailable


async def custom_ids(made: Bench, batch: Batch) -> tuple[list[str], list[str]]:
    output, errors = await made.read(batch.output_file_id), await made.read(batch.error_file_id)
    return [one["custom_id"] for one in output], [one["custom_id"] for one in errors]


def test_a_batch_runs_to_its_output_file(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path) as made:
            name = await made.create(lines(20), metadata={"a": "b"})
            batch = await made.until(name, "completed")
            assert (batch.total, batch.completed, batch.failed) == (20, 20, 0)
            assert (batch.metadata, batch.model, batch.error_file_id) == ({"a": "b"}, "tiny", None)
            assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.cached_tokens) == (60, 40, 20)
            output = await made.read(batch.output_file_id)
            assert [one["custom_id"] for one in output] == [f"r{index}" for index in range(20)]
            assert output[3]["response"]["status_code"] == 200
            assert output[3]["response"]["body"]["echo"] == "r3"
            assert output[3]["error"] is None
            assert len({one["id"] for one in output} | {one["response"]["request_id"] for one in output}) == 40

    asyncio.run(run())


def test_lines_that_fail_are_in_the_error_file(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path) as made:
            made.statuses = {"r1": [400], "r3": [500]}
            batch = await made.until(await made.create(lines(5)), "completed")
            assert (batch.completed, batch.failed) == (3, 2)
            assert await custom_ids(made, batch) == (["r0", "r2", "r4"], ["r1", "r3"])
            error = (await made.read(batch.error_file_id))[0]
            assert error["response"]["status_code"] == 400
            assert error["response"]["body"] == {"error": {"message": "wrong"}}

    asyncio.run(run())


def test_a_wrong_input_file_fails_the_batch_before_any_line_runs(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path) as made:
            batch = await made.until(await made.create(lines(2) + b"\nno JSON\n{}"), "failed")
            assert [(error.code, error.line) for error in batch.errors] == [
                ("invalid_json_line", 3),
                ("missing_required_parameter", 4),
            ]
            assert not made.asked
            with pytest.raises(InvalidRequest, match="failed"):
                await made.manager.cancel("", batch.id)

    asyncio.run(run())


def test_only_as_many_lines_run_as_there_is_room_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path, slots=8) as made:
            made.gate.clear()
            name = await made.create(lines(20))
            async with asyncio.timeout(30):
                while len(made.asked) < 6:
                    await asyncio.sleep(0)
            await made.manager.runner.check()  # type: ignore[union-attr]
            assert len(made.asked) == made.manager.limiters.running == 6
            made.capacity = Capacity(8, 8)  # interactive requests have it all
            made.gate.set()
            batch = await made.wait_for(name, lambda batch: batch.completed == 6)
            assert (batch.status, len(made.asked)) == ("in_progress", 6)
            made.capacity = Capacity(8, 0)
            await made.until(name, "completed")

    asyncio.run(run())


def test_a_cancelled_batch_keeps_what_has_run(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path, slots=4) as made:
            made.gate.clear()
            made.answered_at_once = {"r0", "r1", "r2"}
            name = await made.create(lines(9))
            await made.wait_for(name, lambda batch: batch.completed == 3)
            assert (await made.manager.cancel("", name)).status == "cancelling"
            batch = await made.until(name, "cancelled")
            output, errors = await custom_ids(made, batch)
            assert output == ["r0", "r1", "r2"]
            assert errors == [f"r{index}" for index in range(3, 9)]
            assert (batch.completed, batch.failed) == (3, 0)
            error = (await made.read(batch.error_file_id))[0]
            assert (error["response"], error["error"]["code"]) == (None, "batch_cancelled")
            assert made.manager.limiters.running == 0

    asyncio.run(run())


def test_a_batch_expires_after_its_window(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path, slots=4) as made:
            made.gate.clear()
            name = await made.create(lines(5))
            await made.until(name, "in_progress")
            made.now += WINDOW_S - 1
            await made.manager.runner.check()  # type: ignore[union-attr]
            assert (await made.manager.batch("", name)).status == "in_progress"
            made.now += 1
            await made.manager.runner.check()  # type: ignore[union-attr]
            batch = await made.until(name, "expired")
            assert batch.expired_at == batch.expires_at == int(made.now)
            errors = await made.read(batch.error_file_id)
            assert {one["error"]["code"] for one in errors} == {"batch_expired"}
            assert len(errors) == 5

    asyncio.run(run())


def test_a_line_is_tried_again_when_the_engine_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "RETRY_S", 0.0)

    async def run() -> None:
        async with bench(tmp_path) as made:
            made.statuses = {"r0": [503, 429, 429, 429, 503], "r1": [503, 503, 503, 503]}
            batch = await made.until(await made.create(lines(2)), "completed")
            assert await custom_ids(made, batch) == (["r0"], ["r1"])
            assert (made.asked.count("r0"), made.asked.count("r1")) == (6, job_module.MAX_ATTEMPTS)

    asyncio.run(run())


def test_a_line_is_tried_again_when_its_upstream_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_module, "RETRY_S", 0.0)

    async def run() -> None:
        async with bench(tmp_path) as made:
            made.statuses = {"r0": [502, 504], "r1": [502, 503, 504, 502]}
            batch = await made.until(await made.create(lines(2)), "completed")
            assert await custom_ids(made, batch) == (["r0"], ["r1"])
            made.says_when = True  # its circuit is open: the upstream was not even asked
            made.statuses = {"r0": [502] * 10}
            batch = await made.until(await made.create(lines(1)), "completed")
            assert await custom_ids(made, batch) == (["r0"], [])

    asyncio.run(run())


def test_a_model_that_is_away_is_waited_for(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path) as made:
            made.capacity = None
            name = await made.create(lines(2))
            await made.until(name, "in_progress")
            await made.manager.runner.check()  # type: ignore[union-attr]
            assert not made.asked
            made.capacity = Capacity(4, 0)
            await made.until(name, "completed")

    asyncio.run(run())


def test_tenants_see_their_own(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path) as made:
            name = await made.create(lines(1), tenant="alice")
            batch = await made.until(name, "completed", tenant="alice")
            manager = made.manager
            listing: dict[str, Any] = {"purpose": None, "after": None, "limit": 10, "order": "asc"}
            assert len((await manager.files("alice", **listing))[0]) == 2
            assert await manager.files("bob", **listing) == ([], False)
            assert await manager.batches("bob", after=None, limit=10) == ([], False)
            assert batch.output_file_id is not None
            for call in (
                manager.batch("bob", name),
                manager.cancel("bob", name),
                manager.file("bob", batch.output_file_id),
                manager.delete_file("bob", batch.output_file_id),
                manager.create_batch(
                    "bob", input_file_id=batch.input_file_id, endpoint="x", metadata=None, output_expires_s=None
                ),
            ):
                with pytest.raises(NotFound):
                    await call

    asyncio.run(run())


def test_a_file_that_is_deleted_meanwhile_is_still_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path, slots=2) as made:
            made.gate.clear()
            name = await made.create(lines(4))
            batch = await made.until(name, "in_progress")
            await made.manager.delete_file("", batch.input_file_id)
            with pytest.raises(NotFound):
                await made.manager.file("", batch.input_file_id)
            made.gate.set()
            batch = await made.until(name, "completed")
            assert batch.completed == 4
            async with asyncio.timeout(30):
                while (tmp_path / "files" / batch.input_file_id).exists():
                    await asyncio.sleep(0.001)

    asyncio.run(run())


def test_files_expire(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path) as made:
            name = await made.create(lines(1), output_expires_s=3600)
            batch = await made.until(name, "completed")
            assert batch.output_file_id is not None
            made.now += 3600
            await made.manager.runner.check()  # type: ignore[union-attr]
            async with asyncio.timeout(30):
                while list((tmp_path / "files").iterdir()):  # the runner's own look may be under way
                    await asyncio.sleep(0.001)
            for file in (batch.output_file_id, batch.input_file_id):
                with pytest.raises(NotFound):
                    await made.manager.file("", file)

    asyncio.run(run())


def test_unfinished_batches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager_module, "MAX_UNFINISHED", 2)

    async def run() -> None:
        async with bench(tmp_path) as made:
            made.gate.clear()
            for _ in range(2):
                await made.create(lines(1))
            with pytest.raises(QueueFull, match="2 batches"):
                await made.create(lines(1))
            await made.create(lines(1), tenant="bob")

    asyncio.run(run())


def test_one_server_at_a_time_has_the_folder(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path) as made, bench(tmp_path) as second:
            await made.manager.open()
            with pytest.raises(StorageUnavailable, match="another server"):
                await second.manager.open()
            await made.manager.close()
            await second.manager.open()
            with pytest.raises(ShuttingDown):
                await made.manager.open()

    asyncio.run(run())


def test_a_folder_that_cannot_be_used_is_told_without_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    async def run() -> None:
        async with bench(tmp_path / "file") as made:
            with pytest.raises(StorageUnavailable) as caught:
                await made.manager.open()
            assert str(tmp_path) not in caught.value.message

    asyncio.run(run())


def test_nothing_is_opened_before_the_first_call(tmp_path: Path) -> None:
    async def run() -> None:
        async with bench(tmp_path / "data") as made:
            made.manager.start()
            await asyncio.sleep(0)
        assert not (tmp_path / "data").exists()

    asyncio.run(run())


class Crash(Exception):
    """The server is killed."""


@pytest.mark.parametrize("calls", range(14))
def test_a_server_killed_at_any_transaction_is_resumed_and_each_line_is_there_once(tmp_path: Path, calls: int) -> None:
    """Of a run that is broken off before its n-th use of the database, and of what it left."""

    async def run() -> None:
        async with bench(tmp_path, slots=2) as made:
            made.statuses = {"r2": [400]}
            folder, left = await made.manager.open(), calls
            in_database_thread = folder.in_database_thread

            async def until_killed(call: Any, *arguments: Any) -> Any:
                nonlocal left
                left -= 1
                if left < 0:
                    raise Crash
                return await in_database_thread(call, *arguments)

            assert made.manager.runner is not None
            name = await made.upload(lines(6))
            (tmp_path / "files" / new_id("file-")).write_text("published, but not stored")
            environment = made.manager.runner._environment
            made.manager.runner._environment = type(environment)(
                **{field: getattr(environment, field) for field in type(environment).__struct_fields__}
                | {"in_database_thread": until_killed}
            )
            batch = await made.manager.create_batch(
                "", input_file_id=name, endpoint="/v1/chat/completions", metadata=None, output_expires_s=None
            )
            async with asyncio.timeout(30):
                while left >= 0 and made.manager.runner.jobs:
                    await asyncio.sleep(0.001)
            await made.restart()
            batch = await made.until(batch.id, "completed")
            output, errors = await custom_ids(made, batch)
            assert (output, errors) == (["r0", "r1", "r3", "r4", "r5"], ["r2"]) or errors == []  # answered anew
            assert sorted([*output, *errors]) == [f"r{index}" for index in range(6)]
            assert (batch.completed, batch.failed) == (len(output), len(errors))
            assert len(list((tmp_path / "files").iterdir())) == 1 + bool(output) + bool(errors)

    asyncio.run(run())
