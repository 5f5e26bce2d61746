"""Which names a server answers to (DNS rebinding), and that there is exactly one."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import pytest

from penstock.http.middleware.auth import KEYLESS_PATHS
from penstock.http.middleware.hosts import HostMiddleware
from penstock.http.middleware.request_id import RequestIdMiddleware
from penstock.settings import ServeSettings, Settings

LOCAL, OPEN = ServeSettings(), ServeSettings(host="0.0.0.0", unprotected=True)


def answer(
    *hosts: str, settings: ServeSettings = LOCAL, version: str = "1.1", path: str = "/v1/models"
) -> tuple[int, str]:
    """Status and body."""
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"served"})

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "http_version": version,
        "method": "GET",
        "path": path,
        "raw_path": path.encode(),
        "headers": [(b"host", host.encode("latin-1")) for host in hosts],
    }
    guarded = RequestIdMiddleware(HostMiddleware(app, Settings(serve=settings), any_host_paths=KEYLESS_PATHS))
    asyncio.run(guarded(scope, None, send))  # type: ignore[arg-type]
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:8000",
        "localhost.:8000",
        "app.localhost:8000",
        "127.0.0.1:8000",
        "127.4.5.6",
        "[::1]:8000",
        "[::1]",
        "10.1.2.3:8000",
    ],
)
def test_loopback_names_and_addresses_are_served(host: str) -> None:
    assert answer(host) == (200, "served")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example", "evillocalhost"],
)
def test_a_name_that_others_can_point_here_is_not(host: str) -> None:
    for settings in (LOCAL, OPEN):
        status, body = answer(host, settings=settings)
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (421, "host_not_allowed")
        assert f"--allow-host {host.partition(':')[0]}" in error["message"]


def test_names_that_were_configured_are_served() -> None:
    settings = ServeSettings(allow_host="Box.lan, *.example.com")
    assert answer("box.lan:8000", settings=settings)[0] == 200
    assert answer("a.b.Example.com", settings=settings)[0] == 200
    assert answer("example.com", settings=settings)[0] == 421
    assert answer("evil.example", settings=ServeSettings(allow_host="*"))[0] == 200
    assert answer("myhost:1", settings=ServeSettings(host="myhost", unprotected=True))[0] == 200


def test_the_name_of_the_machine_is_served_where_others_can_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "Box.corp.example")
    for name in ("box.corp.example", "box", "box.local:8000"):
        assert answer(name, settings=OPEN)[0] == 200
        assert answer(name)[0] == 421


def test_a_key_protects_a_server_of_any_name() -> None:
    assert answer("evil.example", settings=ServeSettings(api_key="k"))[0] == 200
    assert answer("evil.example", settings=ServeSettings(api_key="k", allow_host="box.lan"))[0] == 421  # as was asked


@pytest.mark.parametrize("path", sorted(KEYLESS_PATHS))
def test_probes_may_use_any_name(path: str) -> None:
    assert answer("pod-7.cluster", path=path)[0] == 200


@pytest.mark.parametrize("settings", [LOCAL, ServeSettings(api_key="k")])
def test_there_is_exactly_one_host(settings: ServeSettings) -> None:
    for hosts, said in (
        ((), "no Host header"),
        (("localhost", "evil.example"), "more than one Host"),
        (("localhost", "localhost"), "more than one Host"),
        (("",), "not a host name"),
        (("local host",), "not a host name"),
        (("localhost:80:80",), "not a host name"),
        (("localhost/x",), "not a host name"),
        (("user@localhost",), "not a host name"),
        (("b\xfccher",), "not a host name"),
    ):
        status, body = answer(*hosts, settings=settings)
        assert status == 400
        assert said in json.loads(body)["error"]["message"]
    assert answer(version="1.0", settings=settings)[0] == 200
    assert answer(version="0.9", settings=settings)[0] == answer(version="2.0", settings=settings)[0] == 400
