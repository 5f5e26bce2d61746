from __future__ import annotations

import asyncio
from typing import Any

from penstock.http.middleware.admission import BATCH, AdmissionThrottle


def play(methods: list[str], gone: set[int] = frozenset()) -> list[list[int]]:  # type: ignore[assignment]
    """Which of these requests, that all arrive at once, are read in which turn of the loop."""
    turns: list[list[int]] = [[]]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        turns[-1].append(scope["place"])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None: ...

    async def main() -> None:
        throttle = AdmissionThrottle(app)
        tasks = [
            asyncio.ensure_future(throttle({"type": "http", "method": method, "place": place}, receive, send))
            for place, method in enumerate(methods)
        ]
        while not all(task.done() for task in tasks):
            await asyncio.sleep(0)
            for place in gone:
                tasks[place].cancel()
            if turns[-1]:
                turns.append([])

    asyncio.run(main())
    return [turn for turn in turns if turn]


def test_a_burst_goes_on_in_lots_and_in_order() -> None:
    turns = play(["POST"] * (3 * BATCH + 1))
    assert [place for turn in turns for place in turn] == list(range(3 * BATCH + 1))
    assert max(map(len, turns)) == BATCH


def test_others_do_not_wait_in_line() -> None:
    turns = play(["POST"] * (2 * BATCH) + ["GET"])
    assert 2 * BATCH in turns[0]


def test_one_that_has_gone_takes_no_place() -> None:
    gone = {BATCH, BATCH + 1}
    turns = play(["POST"] * (3 * BATCH), gone)
    assert [place for turn in turns for place in turn] == [place for place in range(3 * BATCH) if place not in gone]
