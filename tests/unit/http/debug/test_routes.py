from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest

from penstock.gateway.keys.identity import ANONYMOUS
from penstock.http.debug import routes
from penstock.http.routing import App
from penstock.http.service import Service
from penstock.settings import Settings


class Engine:
    """Answers questions, and counts how many it is asked at once."""

    name = "m/0"

    def __init__(self, finding: str | None) -> None:
        self.finding = finding
        self.asked, self.at_once, self.most = 0, 0, 0

    async def ask(self, kind: str) -> str | None:
        assert kind == "check"
        self.asked += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        return self.finding


def checked(engine: Engine, times: int = 1) -> list[dict[str, Any]]:
    app = App()
    model = SimpleNamespace(replicas=SimpleNamespace(replicas=[engine]))
    service = cast(Service, SimpleNamespace(models_of=lambda _: SimpleNamespace(local=[model])))
    routes.add(app, service, None, Settings())

    async def identified(scope: Any, receive: Any, send: Any) -> None:
        scope["state"] = {"identity": ANONYMOUS}
        await app(scope, receive, send)

    async def run() -> list[dict[str, Any]]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(identified), base_url="http://test") as http:
            answers = await asyncio.gather(*(http.get("/observe/check") for _ in range(times)))
        assert {answer.status_code for answer in answers} == {200}
        return [answer.json() for answer in answers]

    return asyncio.run(run())


@pytest.mark.parametrize(("finding", "ok"), [(None, True), ("block 3 is in 2 states at once", False)])
def test_the_check_says_what_is_wrong(finding: str | None, ok: bool) -> None:
    """Also on a server that records no events."""
    (told,) = checked(Engine(finding))
    assert (told["ok"], told["wrong"]) == (ok, finding)
    assert set(told) == {"ok", "wrong", "us"}


def test_the_engine_is_asked_for_one_check_at_a_time() -> None:
    """It answers all it is asked before its next step."""
    engine = Engine(None)
    checked(engine, times=5)
    assert (engine.asked, engine.most) == (5, 1)
