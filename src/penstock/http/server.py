"""The life of the HTTP server: up, serving, draining, down.

The first SIGTERM or SIGINT stops the intake (`/ready` turns 503), lets running requests finish up to a deadline, ends
the rest with a terminal error; a second one ends them at once, a third does not even wait for that to be sent.
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

PARTING_S = 1.0  # after a second signal, for clients to take the last event of their streams


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
    """Serve on a socket that `port.bind` gave, until a signal; gives the exit code. `announce` is told the URL once it
    answers."""
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
            loop.call_later(PARTING_S, leave)
        elif signals > 2:
            leave()

    def leave() -> None:
        server.force_exit = True

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
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
