"""Entry point of a frontend process: `python -m penstock.frontends.worker SOCKET LISTENER`, both file descriptors."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import socket
import sys
from pathlib import Path

from penstock import composition
from penstock.frontends.build import FrontendModels, build_server, find_models
from penstock.frontends.control_link import ControlLink
from penstock.frontends.gate import FrontendGate
from penstock.frontends.messages import (
    Counts,
    Drain,
    Drained,
    EndAll,
    Fence,
    FromControl,
    Listening,
    PromptSent,
    ServeAdapters,
    ServedAdapter,
    StartFrontend,
    Status,
)
from penstock.frontends.proxy import ControlProxy
from penstock.gateway.breaker import BreakerState
from penstock.http.event_loop import prefer_event_loop, run_loop
from penstock.http.idle_work import do_idle_work
from penstock.http.server import HttpServer
from penstock.http.service import Service
from penstock.observe.logs import configure
from penstock.settings import Settings, from_wire
from penstock.system import gc_control
from penstock.system.heap import trim_heap
from penstock.system.orphan_watch import watch_parent
from penstock.system.ownership import claim_process

logger = logging.getLogger(__name__)

STATUS_S = 1.0
LAST_EVENT_S = 1.0  # after EndAll, for clients to read the last event of their streams


class Frontend:
    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self._listener = listener
        self._started: asyncio.Future[StartFrontend] = asyncio.get_running_loop().create_future()
        self._draining: asyncio.Future[float] = asyncio.get_running_loop().create_future()  # seconds for open requests
        self._ending = asyncio.Event()
        self._link = ControlLink(control, self._handle, self._clean_up)
        self._service: Service | None = None
        self._models: FrontendModels | None = None  # connected
        self._adapters: list[ServedAdapter] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        start = await self._started
        os.environ.update(start.variables)
        settings = from_wire(start.settings)
        configure(settings.observe.log_format)
        working = [asyncio.create_task(self._report())]  # engines may take long to load
        with gc_control.paused():
            http, service = await self._serve(start, settings)
        gc_control.tune_for_server()
        trim_heap()
        self._link.tell(Listening())
        working += [asyncio.create_task(do_idle_work(service)), asyncio.create_task(self._drain(service))]
        await self._ending.wait()
        for task in working:
            task.cancel()
        service.closing = True
        if service.open:
            service.end_all()
            asyncio.get_running_loop().call_later(LAST_EVENT_S, self._force_exit, http)
        await http.close()
        await service.accounting.close()
        self._tell_status(0)
        self._link.flush()

    async def _drain(self, service: Service) -> None:
        await service.drain(await self._draining)
        self._link.tell(Drained())

    def _force_exit(self, http: HttpServer) -> None:
        http.uvicorn.force_exit = True

    async def _serve(self, start: StartFrontend, settings: Settings) -> tuple[HttpServer, Service]:
        events = self._link if settings.observe.events else None
        models = FrontendModels(settings, start, self._link)
        registry = await models.connect(await asyncio.to_thread(find_models, settings))
        self._models = models
        models.serve(self._adapters)
        safety = await asyncio.to_thread(composition.safety, settings, events)
        gateway = composition.gateway(settings, registry, start.secret, events, safety)
        gateway.router.on_sent = models.tell_sent
        database = await asyncio.to_thread(composition.database, settings) if settings.tenants.keys else None
        app, service = build_server(settings, registry, gateway, self._link, database)
        if service.key_manager is not None:
            await service.key_manager.start()
        for model in registry.local:
            model.replicas.supervise(settings.serve.hang_s)
        self._service = service
        http = HttpServer(FrontendGate(app, ControlProxy(start.control), start.number))
        await http.start(self._listener)
        return http, service

    def _handle(self, message: FromControl) -> None:
        match message:
            case StartFrontend():
                self._adapters = message.adapters
                self._started.set_result(message)
            case Fence():
                if message.refresh_keys:
                    task = asyncio.create_task(self._refresh_keys(message.number))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                else:
                    self._tell_status(message.number)
            case PromptSent():
                if self._models is not None:
                    self._models.note_sent(message)
            case ServeAdapters():
                self._adapters = message.adapters
                if self._models is not None:
                    self._models.serve(message.adapters)
                self._tell_status(message.number)
            case Drain():
                if not self._draining.done():
                    self._draining.set_result(message.deadline_s)
            case EndAll():
                self._ending.set()

    def _clean_up(self) -> None:
        """The control process has been killed: its folder of sockets is left."""
        if self._started.done():
            shutil.rmtree(Path(self._started.result().control).parent, ignore_errors=True)

    async def _refresh_keys(self, fence: int) -> None:
        manager = None if self._service is None else self._service.key_manager
        if manager is not None:
            await manager.refresh()
        self._tell_status(fence)

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(STATUS_S)
            self._tell_status(0)

    def _tell_status(self, fence: int) -> None:
        counted = Counts()
        if self._service is not None and self._models is not None:
            counted = counts(self._service, self._models.open_by_adapter())
        self._link.tell(Status(fence, counted))


def counts(service: Service, adapters: list[tuple[tuple[str, str], int]]) -> Counts:
    gateway = service.gateway
    tracks, safety = gateway.router.tracks, gateway.safety
    pools = {model.name: pool.totals for model in service.models.local if (pool := model.replicas.prefill) is not None}
    return Counts(
        adapters=adapters,
        open=[(name, count) for name, count in service.open_by_model.items() if count],
        tasks=len(asyncio.all_tasks()),
        decisions=[(name, track.decisions) for name, track in tracks.items() if track.decisions],
        open_circuits=[name for name, one in tracks.items() if one.breaker.state is not BreakerState.CLOSED],
        fallbacks=list(gateway.fallbacks.items()),
        estimated_usage=list(gateway.estimated_usage.items()),
        safety_hits=[] if safety is None else list(safety.hits.items()),
        hook_failures=[]
        if safety is None
        else [((hook.rule, kind), count) for hook in safety.rules.hooks for kind, count in hook.failures.items()],
        transfers=[((name, what), total) for name, one in pools.items() for what, total in one.sums.items()],
        transfer_failures=[((name, why), count) for name, one in pools.items() for why, count in one.failures.items()],
    )


async def _main(control: int, listener: int) -> int:
    await Frontend(socket.socket(fileno=control), socket.socket(fileno=listener)).run()
    return 0


def main() -> int:
    claim_process()
    # As for engines: the control process handles signals of the terminal and of service managers.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    control, listener = map(int, sys.argv[1:3])
    watch_parent(control)
    prefer_event_loop()
    return run_loop(_main(control, listener))


if __name__ == "__main__":
    sys.exit(main())
