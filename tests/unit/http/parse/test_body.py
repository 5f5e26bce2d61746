"""A long body is checked beside the loop: everybody else's tokens go on."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from pydantic import model_validator
from starlette.requests import Request

from helpers.server_process import PATIENCE_S
from penstock.errors import InvalidRequest, MediaTypeUnsupported
from penstock.http.api.fields import StrictModel
from penstock.http.parse import body
from penstock.http.parse.body import LONG_BODY, read_body


def request(body: bytes, **headers: str) -> Request:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    given = {"content-type": "application/json"} | {name.replace("_", "-"): text for name, text in headers.items()}
    raw = [(name.encode(), text.encode()) for name, text in given.items()]
    return Request({"type": "http", "method": "POST", "headers": raw}, receive)


def test_the_loop_goes_on_while_a_long_body_is_checked() -> None:
    turned = threading.Event()

    class Slow(StrictModel):
        text: str

        @model_validator(mode="after")
        def _wait_for_the_loop(self) -> Slow:
            assert turned.wait(PATIENCE_S)
            return self

    async def story() -> Slow:
        reading = asyncio.create_task(read_body(Slow, request(b'{"text": "%s"}' % (b"a" * LONG_BODY))))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(turned.set)
        return await reading

    assert len(asyncio.run(story()).text) == LONG_BODY


def test_the_loop_goes_on_while_a_schema_is_built(monkeypatch: pytest.MonkeyPatch) -> None:
    turned = threading.Event()

    def build_when_the_loop_has_turned(schema: type[StrictModel]) -> None:
        assert turned.wait(PATIENCE_S)
        schema.model_rebuild()

    class Unbuilt(StrictModel):
        text: str

    monkeypatch.setattr(body, "build", build_when_the_loop_has_turned)

    async def story() -> Unbuilt:
        reading = asyncio.create_task(read_body(Unbuilt, request(b'{"text": "a"}')))
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(turned.set)
        return await reading

    assert not Unbuilt.__pydantic_complete__
    assert asyncio.run(story()).text == "a"


def test_what_is_wrong_is_told_of_either() -> None:
    for size in (1, LONG_BODY):
        with pytest.raises(InvalidRequest, match="txt is not a known field"):
            asyncio.run(read_body(StrictModel, request(b'{"txt": "%s"}' % (b"a" * size))))


@pytest.mark.parametrize(
    "told",
    [
        {"origin": "null"},
        {"referer": "https://x.example/"},
        {"sec_fetch_site": "cross-site"},
        {"user_agent": "Mozilla/5.0 (X11; Linux x86_64; rv:60.0) Gecko/20100101 Firefox/60.0"},
    ],
)
def test_what_a_page_sends_must_be_json_everywhere(told: dict[str, str]) -> None:
    asyncio.run(
        read_body(StrictModel, request(b"{}", content_type="text/plain", user_agent="curl/8.5.0"), any_type=True)
    )
    with pytest.raises(MediaTypeUnsupported):
        asyncio.run(read_body(StrictModel, request(b"{}", content_type="text/plain", **told), any_type=True))
