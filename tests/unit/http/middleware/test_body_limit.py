"""How much of all bodies is held at once, and who has to go when it is too much."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.errors import QueueFull, RequestTooLarge
from penstock.http.middleware import body_limit
from penstock.http.middleware.body_limit import BodyLimitMiddleware


class Sender:
    """A client whose body comes in the pieces that it is told to send."""

    def __init__(self, limit: BodyLimitMiddleware) -> None:
        self.pieces: asyncio.Queue[tuple[bytes, bool]] = asyncio.Queue()
        self.state: dict[str, Any] = {}
        self.task = asyncio.ensure_future(limit(self._scope(), self._receive, self._nothing))

    async def send(self, size: int, *, last: bool = False) -> None:
        self.pieces.put_nowait((b"a" * size, not last))
        for _ in range(5):  # turns of the loop, until it has arrived
            await asyncio.sleep(0)

    def _scope(self) -> dict[str, Any]:
        return {"type": "http", "path": "/", "headers": [], "state": self.state}

    async def _receive(self) -> dict[str, Any]:
        body, more = await self.pieces.get()
        return {"type": "http.request", "body": body, "more_body": more}

    @staticmethod
    async def _nothing(message: Any) -> None: ...


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    monkeypatch.setattr(body_limit, "MIN_TOTAL_BYTES", 0)
    return [0.0]


def limited(now: list[float], holding: asyncio.Event | None = None) -> BodyLimitMiddleware:
    """Of 100 bytes for a body, 400 for all; whoever has read its body holds on to it until the event."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["more_body"]:
            pass
        if holding is not None:
            await holding.wait()

    return BodyLimitMiddleware(app, 100, clock=lambda: now[0])


def test_the_slowest_goes_when_there_is_too_much(now: list[float]) -> None:
    async def story() -> None:
        limit = limited(now)
        slow = Sender(limit)
        await slow.send(90)
        now[0] = 60.0
        quick = [Sender(limit) for _ in range(4)]
        for sender in quick:
            await sender.send(80)
        assert limit.held == 320  # 410 were too many
        with pytest.raises(QueueFull):
            await slow.task
        for sender in quick:
            await sender.send(1, last=True)
            await sender.task
        assert limit.held == 0

    asyncio.run(story())


def test_one_that_is_the_slowest_itself_is_refused(now: list[float]) -> None:
    async def story() -> None:
        limit = limited(now, asyncio.Event())
        whole = [Sender(limit) for _ in range(4)]
        for sender in whole:
            await sender.send(95, last=True)  # nobody is sent away whose body is complete
        late = Sender(limit)
        await late.send(30)
        with pytest.raises(QueueFull):
            await late.task
        assert limit.held == 380
        whole[0].state["release_body"]()  # it has been parsed
        assert limit.held == 285
        again = Sender(limit)
        await again.send(30, last=True)
        assert not again.task.done()
        for sender in [*whole, again]:
            sender.task.cancel()
        await asyncio.gather(*(sender.task for sender in [*whole, again]), return_exceptions=True)
        assert limit.held == 0

    asyncio.run(story())


def test_the_least_total_is_for_servers_of_short_bodies() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None: ...

    assert BodyLimitMiddleware(app, 2000).total == 64 << 20
    assert BodyLimitMiddleware(app, 64 << 20).total == 256 << 20


def test_a_streamed_body_has_its_own_limit_and_is_not_held(now: list[float]) -> None:
    async def story() -> None:
        limit = limited(now)
        limit.streamed = {"/": 1000}
        upload = Sender(limit)
        for _ in range(10):
            await upload.send(100)
        assert limit.held == 0
        assert not upload.task.done()
        await upload.send(1, last=True)
        with pytest.raises(RequestTooLarge, match="1000 bytes"):
            await upload.task

    asyncio.run(story())
