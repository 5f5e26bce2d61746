"""The life of the HTTP server: listen, serve, drain, stop.

It listens before the models are loaded, with the application of `http.starting`; `serve` puts the real one in its
place. The first SIGTERM or SIGINT stops accepting requests (`/ready` turns 503), lets open ones finish up to a
deadline, and ends the rest with a terminal error. A second signal ends them at once, a third does not wait until that
is sent.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.http import protocol
from penstock.http.port import listen
from penstock.http.uvicorn_adapter import Server, choose_protocol

if TYPE_CHECKING:
    from penstock.http.service import Service
    from penstock.observe.observer import Observer

logger = logging.getLogger(__name__)

LAST_EVENT_S = 1.0  # after a second signal, for clients to read the last event of their streams


class Frontends(Protocol):
    """Further frontend processes (`frontends.supervisor`)."""

    async def take_over(self, http: HttpServer, app: ASGIApp) -> None:
        """Have them accept connections instead of `http`. `app` answers what is not theirs."""

    async def drain(self, deadline_s: float) -> None:
        """They accept no more requests, finish those they have, and exit."""

    def end_all(self) -> None:
        """They end all requests and exit."""


class HttpServer:
    """Answers with `app`, which may be replaced at any time: connections stay."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.url = ""
        self.uvicorn: Server
        self.serving: asyncio.Task[None]

    async def start(self, listener: socket.socket) -> None:
        """Listen on the socket of `port.bind`."""
        listen(listener)
        http = await choose_protocol(protocol.Protocol, protocol.BODY_EXTENSION)
        config = uvicorn.Config(
            self._call, interface="asgi3", loop="none", http=http, ws="none", lifespan="off", log_config=None,
            access_log=False, timeout_graceful_shutdown=5, h11_max_incomplete_event_size=protocol.MAX_HEAD_BYTES,
        )  # fmt: skip
        self.uvicorn = Server(config)
        self.serving = asyncio.create_task(self.uvicorn.serve(sockets=[listener]))
        while not self.uvicorn.started and not self.serving.done():
            await asyncio.sleep(0.005)
        if listener.family != socket.AF_UNIX:
            host, port = listener.getsockname()[:2]
            self.url = f"http://{f'[{host}]' if ':' in host else host}:{port}"

    async def _call(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)

    def stop_accepting(self) -> None:
        """Connections stay, and the socket goes on listening if another process has it."""
        for server in self.uvicorn.servers:
            server.close()

    async def close(self) -> None:
        """Closes connections once their responses are sent, or after a few seconds."""
        self.uvicorn.should_exit = True
        await self.serving


async def serve(
    http: HttpServer,
    app: ASGIApp,
    service: Service,
    observer: Observer | None,
    announce: Callable[[str], None],
    *,
    drain_s: float,
    hang_s: float,
    frontends: Frontends | None = None,
) -> int:
    """Serves `app` until a signal; returns the exit code. Calls `announce` with the URL once `app` answers."""
    from penstock.http.idle_work import do_idle_work  # imports pydantic, which listening needs not wait for

    server, serving = http.uvicorn, http.serving
    stop = asyncio.Event()
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        stop.set()
        if signals == 2:
            logger.warning("second signal: ending at once")
            service.end_all()
            if frontends is not None:
                frontends.end_all()
            for model in service.models.local:
                model.replicas.close(at_once=True)
            server.should_exit = True
            loop.call_later(LAST_EVENT_S, force_exit)
        elif signals > 2:
            force_exit()

    def force_exit() -> None:
        server.force_exit = True

    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal)
    for model in service.models.local:
        model.replicas.supervise(hang_s)
    scaling = asyncio.create_task(service.autoscaler.run())
    watching = None
    if observer is not None:
        watching = asyncio.create_task(observer.run(service.replica_queries, service.engine_pids))
    if service.batches is not None:
        service.batches.start()
    http.app = app
    if frontends is not None:
        await frontends.take_over(http, app)
    announce(http.url)
    idle_work = asyncio.create_task(do_idle_work(service))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
    idle_work.cancel()
    scaling.cancel()
    if service.batches is not None:
        await service.batches.close()  # its lines run again after the next start
    if signals == 1:
        logger.info("shutting down: %d requests are open", service.open)
        draining = asyncio.create_task(_drain(service, frontends, drain_s))
        await asyncio.wait({draining, serving}, return_when=asyncio.FIRST_COMPLETED)
    await http.close()
    if watching is not None:
        watching.cancel()
    return 0 if signals <= 1 else 1


async def _drain(service: Service, frontends: Frontends | None, deadline_s: float) -> None:
    if frontends is None:
        await service.drain(deadline_s)
    else:
        await asyncio.gather(service.drain(deadline_s), frontends.drain(deadline_s))
