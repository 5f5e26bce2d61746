"""All that Penstock uses of uvicorn beyond its documented API: the HTTP/1.1 protocol of a connection, which
`http.protocol` extends with bounds and direct writes. Tried with uvicorn 0.54.

`choose_protocol` has a request go through the extended protocol before the server starts. If this uvicorn does not
carry it, its own h11 protocol serves instead: with a looser bound on headers, without deadlines for slow requests, and
with every token of a stream going through ASGI.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Any

import uvicorn

from penstock.system.slow_paths import warn_slow_path

try:
    from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
except ImportError:  # `choose_protocol` says so
    STATUS_LINE, HttpToolsProtocol, RequestResponseCycle = {}, asyncio.Protocol, object  # type: ignore[assignment, misc]

__all__ = ["STATUS_LINE", "HttpToolsProtocol", "RequestResponseCycle", "Server", "choose_protocol"]

REHEARSAL_S = 5.0
REQUEST = b"POST / HTTP/1.1\r\nhost: rehearsal\r\nconnection: upgrade\r\nupgrade: h2c\r\ncontent-length: 2\r\n\r\nhi"
BODY = b"2\r\nhi\r\n1\r\n!\r\n0\r\n\r\n"


class Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are ours: uvicorn would close the connections of running requests first."""
        yield


async def choose_protocol(extended: type[asyncio.Protocol], extension: str) -> type[asyncio.Protocol] | str:
    """What uvicorn.Config takes as `http`. `extension` names the direct body in the ASGI scope."""
    try:
        async with asyncio.timeout(REHEARSAL_S):
            answer = await _rehearse(extended, extension)
    except Exception as error:
        answer = repr(error).encode()
    if answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(BODY):
        return extended
    consequence = "slow requests have no deadline, and streams cost more CPU time per token"
    warn_slow_path("uvicorn", "HTTP protocol", f"{consequence} ({answer[-200:].decode(errors='replace')})")
    return "h11"


async def _rehearse(protocol: Any, extension: str) -> bytes:
    """The bytes that answer one request on a connection that leads nowhere."""

    async def application(scope: Any, receive: Any, send: Any) -> None:
        body = scope["extensions"][extension]
        request = await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": request["body"], "more_body": True})
        if body.ready:
            body.write(b"!")
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    config = uvicorn.Config(application, http=protocol, ws="none", lifespan="off", log_config=None, access_log=False)
    config.load()
    state, transport = uvicorn.Server(config).server_state, _Transport()
    connection = protocol(config=config, server_state=state, app_state={})
    connection.connection_made(transport)
    connection.data_received(REQUEST)
    await asyncio.gather(*state.tasks)
    connection.connection_lost(None)
    return bytes(transport.written)


class _Transport(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()

    def write(self, data: Any) -> None:
        self.written += data

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        return

    pause_reading = resume_reading = close
