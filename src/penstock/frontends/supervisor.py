"""The frontend processes of a server, in its control process: started, watched, replaced, and ended.

One address: each frontend has a listening socket of its own on it (SO_REUSEPORT), so that the kernel divides the
connections evenly by a hash. The control process binds all of them and keeps them open. So connections that come
while a frontend is replaced wait for the next one, and none is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.replica import Replica
from penstock.errors import PenstockError
from penstock.frontends.messages import (
    Drain,
    EndAll,
    EndEngine,
    Fence,
    PromptSent,
    ServeAdapters,
    ServedAdapter,
    StartFrontend,
)
from penstock.frontends.peer import FrontendPeer
from penstock.http.port import bind_beside
from penstock.http.server import HttpServer
from penstock.http.service import Service
from penstock.observe.trace.journal import Journal
from penstock.settings import Settings, child_environment
from penstock.settings.server import MAX_FRONTENDS
from penstock.startup.server_models import ServerModels
from penstock.system.framed_socket import listen_on

logger = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.1, 10.0  # before a frontend is replaced: doubled each time
HEALTHY_AFTER_S = 60.0
FENCE_S = 2.0  # a frontend that hangs holds up the routes of the control process no longer than that
LOOK_S = 1.0
SILENT_S = 30.0  # a frontend that serves says something every second; one that has not for so long hangs
NUMBERS_OF_ONE = 1 << 20  # sequence numbers that the next process of a frontend leaves out
EXIT_S = 5.0


@dataclass(slots=True)
class Slot:
    """A frontend: one process after the other, on the same socket."""

    number: int  # from 1
    listener: socket.socket
    generation: int = 0
    process: subprocess.Popen[bytes] | None = None
    control: socket.socket | None = None  # the end of a process that has not been started yet
    peer: FrontendPeer | None = None
    replacing: asyncio.Task[None] | None = None
    wait_s: float = FIRST_WAIT_S
    since: float = field(default_factory=time.monotonic)


class FrontendSet:
    """Belongs to one event loop."""

    def __init__(self, settings: Settings, count: int, listener: socket.socket, folder: Path) -> None:
        """`listener` is bound, with SO_REUSEPORT. `folder` is private: for sockets."""
        self._settings = settings
        self._folder = folder
        others = [bind_beside(listener, settings.serve) for _ in range(count - 1)]
        self._slots = [Slot(number, one) for number, one in enumerate((listener.dup(), *others), start=1)]
        self._fences = itertools.count(1)
        self._closing = False
        self._http: HttpServer | None = None
        self._watching: asyncio.Task[None] | None = None
        self._service: Service
        self._models: ServerModels
        self._journal: Journal | None = None

    def spawn(self) -> None:
        """Start the processes: they import what they need while the engines load."""
        for slot in self._slots:
            self._spawn(slot)

    def attach(self, service: Service, models: ServerModels, journal: Journal | None) -> None:
        """What they share."""
        self._service, self._models, self._journal = service, models, journal
        service.frontends = self
        service.gateway.reported_circuits = self._open_circuits
        if service.key_manager is not None:
            service.key_manager.on_change = self._refresh_keys
        models.adapters.on_change = self._serve_adapters
        models.adapters.open_elsewhere = self._open_requests

    async def take_over(self, http: HttpServer, app: ASGIApp) -> None:
        """Raises PenstockError if a frontend does not start."""
        fenced = FencedApp(app, self)
        self._http = HttpServer(fenced)
        await self._http.start(listen_on(self._folder / "control"))
        http.app = fenced
        for slot in self._slots:
            self._start(slot)
        for slot in self._slots:
            assert slot.peer is not None
            await slot.peer.listening.wait()
            if slot.peer.gone:
                raise PenstockError(f"frontend {slot.number} ended while it started: its log says why")
        http.stop_accepting()
        self._watching = asyncio.create_task(self._watch())

    async def fence(self, *, refresh_keys: bool = False) -> None:
        """Returns when all that frontends have told by now is applied here."""
        await self._tell_all(Fence(next(self._fences), refresh_keys))

    async def _tell_all(self, message: Fence | ServeAdapters) -> None:
        peers = [slot.peer for slot in self._slots if slot.peer is not None]
        waiting = [asyncio.create_task(peer.fence(message)) for peer in peers]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=FENCE_S)
            for task in late:
                task.cancel()

    async def drain(self, deadline_s: float) -> None:
        self._closing = True
        for slot in self._slots:
            if slot.replacing is not None:
                slot.replacing.cancel()
            if slot.peer is not None:
                slot.peer.send(Drain(deadline_s))
        peers = [slot.peer for slot in self._slots if slot.peer is not None]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(deadline_s + EXIT_S):
                await asyncio.gather(*(peer.drained.wait() for peer in peers))
        self.end_all()  # together: until then all of them tell clients that the server stops
        await asyncio.gather(*(self._ended(slot, EXIT_S) for slot in self._slots))

    def end_all(self) -> None:
        self._closing = True
        for slot in self._slots:
            if slot.peer is not None:
                slot.peer.send(EndAll())

    async def close(self) -> None:
        """May be called again."""
        self._closing = True
        if self._watching is not None:
            self._watching.cancel()
        for slot in self._slots:
            if slot.replacing is not None:
                slot.replacing.cancel()
            if slot.process is not None and slot.process.poll() is None:
                if slot.peer is not None:
                    slot.peer.send(EndAll())
                await self._ended(slot, EXIT_S if slot.peer is not None else 0.0)
            if slot.peer is not None:
                slot.peer.close()
            if slot.control is not None:
                slot.control.close()
                slot.control = None
            slot.listener.close()
        if self._http is not None:
            http, self._http = self._http, None
            await http.close()

    # --- what the routes of the control process show

    def open_by_model(self) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for slot in self._slots:
            if slot.peer is not None:
                counts.update(dict(slot.peer.counts.open))
        return counts

    def tasks(self) -> int:
        return sum(slot.peer.counts.tasks for slot in self._slots if slot.peer is not None)

    def pids(self) -> list[int]:
        return [slot.process.pid for slot in self._slots if slot.process is not None]

    def _open_circuits(self) -> set[str]:
        return {name for slot in self._slots if slot.peer is not None for name in slot.peer.counts.open_circuits}

    async def _refresh_keys(self) -> None:
        await self.fence(refresh_keys=True)

    # --- adapters

    async def _serve_adapters(self) -> None:
        await self._tell_all(ServeAdapters(next(self._fences), self._adapters()))

    def _adapters(self) -> list[ServedAdapter]:
        return [
            ServedAdapter(
                model.base.name,
                model.adapter.name,
                str(model.adapter_files.path),
                str(model.adapter_files.weights),
                msgspec.structs.replace(model.adapter_files.spec, low_ranks=()),
                model.own_price,
                model.own_aliases,
            )
            for model in self._models.registry.adapters
        ]

    def _open_requests(self, model: AdapterModel) -> int:
        key = (model.card.name, model.adapter.version)
        return sum(dict(slot.peer.counts.adapters).get(key, 0) for slot in self._slots if slot.peer is not None)

    # --- processes

    def _spawn(self, slot: Slot) -> None:
        slot.control, theirs = socket.socketpair()
        handles = (theirs.fileno(), slot.listener.fileno())
        try:
            slot.process = subprocess.Popen(
                [sys.executable, "-m", "penstock.frontends.worker", *map(str, handles)],
                stdin=subprocess.DEVNULL,
                env=child_environment(),
                pass_fds=handles,
                process_group=0,  # out of reach of the terminal's Ctrl-C
            )
        finally:
            theirs.close()
        slot.since = time.monotonic()

    def _start(self, slot: Slot) -> None:
        assert slot.control is not None
        control, slot.control = slot.control, None
        slot.peer = FrontendPeer(
            control,
            self._service,
            self._journal,
            on_gone=lambda: self._on_gone(slot),
            end_engine=self._end_engine,
            pass_on=lambda message: self._pass_on(slot, message),
        )
        start = StartFrontend(
            settings=msgspec.to_builtins(self._settings),
            secret=self._models.secret,
            number=slot.number,
            numbers=(slot.number, 1 + MAX_FRONTENDS, slot.generation * NUMBERS_OF_ONE),
            engines={name: [str(path) for path in paths] for name, paths in self._models.engine_paths.items()},
            control=str(self._folder / "control"),
            variables=_variables(self._settings),
            adapters=self._adapters(),
        )
        slot.peer.send(start)

    def _on_gone(self, slot: Slot) -> None:
        assert slot.peer is not None
        if not self._closing and self._watching is not None:
            slot.replacing = asyncio.create_task(self._replace(slot))

    async def _replace(self, slot: Slot) -> None:
        """Until there is one: a process that does not start counts as one that died."""
        assert slot.process is not None
        code = await asyncio.to_thread(slot.process.wait)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        if time.monotonic() - slot.since > HEALTHY_AFTER_S:
            slot.wait_s = FIRST_WAIT_S
        logger.error("frontend %d died (%s); starting another in %.1f s", slot.number, how, slot.wait_s)
        await asyncio.sleep(slot.wait_s)
        slot.wait_s = min(2 * slot.wait_s, LONGEST_WAIT_S)
        slot.generation += 1
        self._spawn(slot)
        self._start(slot)

    async def _watch(self) -> None:
        """Kill frontends that hang."""
        while True:
            began = time.monotonic()
            await asyncio.sleep(LOOK_S)
            if time.monotonic() - began < 2 * LOOK_S:  # else this process was held up: what they said is not read yet
                self._end_silent()

    def _end_silent(self) -> None:
        hang_s, now = self._settings.serve.hang_s, time.monotonic()
        for slot in self._slots:
            peer = slot.peer
            if peer is None or peer.gone:
                continue
            limit_s = min(SILENT_S, hang_s) if peer.listening.is_set() else hang_s
            if now - peer.seen >= limit_s:
                assert slot.process is not None
                logger.error("frontend %d gave no sign of life for %g s and is ended", slot.number, limit_s)
                slot.process.kill()

    async def _ended(self, slot: Slot, timeout_s: float) -> None:
        """Wait for the end of its process, or kill it. Its socket takes no more connections then."""
        assert slot.process is not None
        until = time.monotonic() + timeout_s
        while slot.process.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.02)
        if slot.process.poll() is None:
            slot.process.kill()
            await asyncio.to_thread(slot.process.wait)
        slot.listener.close()

    def _pass_on(self, sender: Slot, message: PromptSent) -> None:
        for slot in self._slots:
            if slot is not sender and slot.peer is not None and slot.peer.hears:
                slot.peer.send(message)

    def _end_engine(self, message: EndEngine) -> None:
        for model in self._models.registry.local:
            for replica in model.replicas.replicas:
                if isinstance(replica, Replica) and replica.source == message.source:
                    replica.end_engine(message.why)


class FencedApp:
    """The application of the control process: whatever a client has seen of frontends, it finds here."""

    def __init__(self, app: ASGIApp, frontends: FrontendSet) -> None:
        self._app, self._frontends = app, frontends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self._frontends.fence()
        await self._app(scope, receive, send)


def _variables(settings: Settings) -> dict[str, str]:
    """Of the environment, those whose names the settings say: they may hold secrets, and are not inherited."""
    names = [*(entry.api_key_env for entry in settings.models), *(rule.hook_key_env for rule in settings.safety)]
    return {name: os.environ[name] for name in names if name is not None and name in os.environ}
