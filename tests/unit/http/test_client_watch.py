from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from penstock.http.client_watch import while_connected


async def stays() -> Any:
    await asyncio.Event().wait()


async def leaves() -> Any:
    return {"type": "http.disconnect"}


async def answer() -> str:
    await asyncio.sleep(0)
    return "done"


async def unstoppable() -> str:
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        return "done anyway"
    raise AssertionError


async def failing() -> str:
    raise ValueError("wrong")


def test_the_result_of_the_work_or_its_error() -> None:
    assert asyncio.run(while_connected(stays, answer())) == "done"
    assert asyncio.run(while_connected(leaves, unstoppable())) == "done anyway"
    with pytest.raises(ValueError, match="wrong"):
        asyncio.run(while_connected(stays, failing()))


def test_a_client_that_leaves_cancels_it() -> None:
    with pytest.raises(ClientDisconnect):
        asyncio.run(while_connected(leaves, asyncio.sleep(3600)))


def test_cancelling_it_cancels_the_work() -> None:
    async def work() -> bool:
        ended = asyncio.Event()

        async def waits() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.ensure_future(while_connected(stays, waits()))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.wait({task})
        await ended.wait()
        return task.cancelled()

    assert asyncio.run(work())
