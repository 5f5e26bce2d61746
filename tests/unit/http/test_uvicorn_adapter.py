"""uvicorn's internals: the extended protocol where this version carries it, and the warning and h11 where not."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
import uvicorn
from uvicorn.protocols.http import httptools_impl

from penstock.http import protocol
from penstock.http.uvicorn_adapter import Server, choose_protocol
from penstock.system.slow_paths import warn_slow_path


@pytest.fixture(autouse=True)
def _fresh() -> None:
    warn_slow_path.cache_clear()


async def chosen(kind: type[asyncio.Protocol] = protocol.Protocol) -> object:
    return await choose_protocol(kind, protocol.BODY_EXTENSION)


def test_the_installed_uvicorn_carries_our_protocol(caplog: pytest.LogCaptureFixture) -> None:
    assert asyncio.run(chosen()) is protocol.Protocol
    assert caplog.text == ""


class NoFlow(httptools_impl.RequestResponseCycle):
    """As if an attribute had another name."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.flow_control = self.__dict__.pop("flow")


class Silent(protocol.Protocol):
    """As if callbacks had other names: no request ever begins."""

    def data_received(self, data: bytes) -> None:
        return


@pytest.mark.parametrize("missing", ["attribute", "callback", "everything"])
def test_another_uvicorn_serves_with_its_own_protocol(
    missing: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kind: type[asyncio.Protocol] = protocol.Protocol
    if missing == "attribute":
        monkeypatch.setattr(httptools_impl, "RequestResponseCycle", NoFlow)
    else:
        kind = Silent if missing == "callback" else asyncio.Protocol
    assert asyncio.run(chosen(kind)) == "h11"
    assert asyncio.run(chosen(kind)) == "h11"
    assert caplog.text.count("this version of uvicorn has no HTTP protocol as Penstock knows it") == 1


def test_what_serves_instead_answers_in_the_same_way() -> None:
    async def application(scope: Any, receive: Any, send: Any) -> None:
        assert protocol.BODY_EXTENSION not in scope.get("extensions", {})
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for piece in (b"data: 1\n\n", b"data: 2\n\n", b""):
            await send({"type": "http.response.body", "body": piece, "more_body": piece != b""})

    async def main() -> httpx.Response:
        http = await chosen(asyncio.Protocol)
        server = Server(uvicorn.Config(application, port=0, http=http, lifespan="off", log_config=None))  # type: ignore[arg-type]
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0)
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}")
        server.should_exit = True
        await serving
        return answer

    answer = asyncio.run(main())
    assert (answer.status_code, answer.text) == (200, "data: 1\n\ndata: 2\n\n")
