"""The life of the HTTP server: start, serve, drain, stop.

The first SIGTERM or SIGINT stops accepting requests (`/ready` turns 503), lets open ones finish up to a deadline, and
ends the rest with a terminal error. A second signal ends them at once, a third does not wait until that is sent.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from penstock.http import protocol
from penstock.http.port import listen
from penstock.http.service import Service
from penstock.http.uvicorn_adapter import Server, choose_protocol
from penstock.observe.observer import Observer

logger = logging.getLogger(__name__)

LAST_EVENT_S = 1.0  # after a second signal, for clients to read the last event of their streams


async def serve(
    app: ASGIApp,
    service: Service,
    observer: Observer | None,
    listener: socket.socket,
    announce: Callable[[str], None],
    *,
    drain_s: float,
    hang_s: float,
) -> int:
    """Serves on the socket of `port.bind` until a signal; returns the exit code. Calls `announce` with the URL once the
    server answers."""
    listen(listener)
    http = await choose_protocol(protocol.Protocol, protocol.BODY_EXTENSION)
    config = uvicorn.Config(
        app, loop="none", http=http, ws="none", lifespan="off", log_config=None, access_log=False,
        timeout_graceful_shutdown=5, h11_max_incomplete_event_size=protocol.MAX_HEAD_BYTES,
    )  # fmt: skip
    server = Server(config)
    stop = asyncio.Event()
    signals = 0

    def on_signal() -> None:
        nonlocal signals
        signals += 1
        stop.set()
        if signals == 2:
            logger.warning("second signal: ending at once")
            service.end_all()
            service.replica.close(at_once=True)
            server.should_exit = True
            loop.call_later(LAST_EVENT_S, force_exit)
        elif signals > 2:
            force_exit()

    def force_exit() -> None:
        server.force_exit = True

    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, on_signal)
    supervising = asyncio.create_task(service.replica.supervise(hang_s))
    asks = {service.replica.source: lambda: service.replica.ask("stats")}
    watching = asyncio.create_task(observer.run(asks)) if observer is not None else None
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    host, port = listener.getsockname()[:2]
    announce(f"http://{f'[{host}]' if ':' in host else host}:{port}")
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
    if signals == 1:
        logger.info("shutting down: %d requests are open", service.open)
        draining = asyncio.create_task(service.drain(drain_s))
        await asyncio.wait({draining, serving}, return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    await serving
    supervising.cancel()
    if watching is not None:
        watching.cancel()
    return 0 if signals <= 1 else 1
