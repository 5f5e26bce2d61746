"""The engine process's side: build the engine, then serve the frontend until it sends Stop or is gone."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from typing import Any

from penstock.engine.ipc import IpcLink
from penstock.engine.links import EngineLinks
from penstock.engine.loop import EngineLoop
from penstock.errors import InvalidRequest, PenstockError
from penstock.flow import Cancel, Delta, Failure, FinishReason, Frame, Query, Ready, Reply, Start, Submit
from penstock.flow.messages import StartPhase, Stop, ToEngine
from penstock.flow.transfer import TransferSetup
from penstock.settings import Settings, from_wire
from penstock.system.heap import trim_heap

logger = logging.getLogger(__name__)

Report = Callable[[str], None]  # of the phase of the start that begins
Build = Callable[[Settings, bytes, Report, TransferSetup | None], tuple[EngineLoop, dict[str, Any]]]


def serve(link: IpcLink[ToEngine], build: Build) -> int:
    """Runs until it is told to stop; returns the exit code of the process. Raises PeerGone."""
    links = EngineLinks(link)
    try:
        host = _start(links, build)
        if host is None:
            return 1
        while _turn(links, host):
            pass
        return 0
    finally:
        links.close()


class EngineHost:
    """The engine of this process. Asleep, it has released the memory of weights and KV blocks; the process and all that
    it has imported stay. On a GPU the rest of the engine stays, too, and takes its memory again. On a CPU it is
    dropped, and built anew from the files that the system still caches."""

    def __init__(self, rebuild: Callable[[], tuple[EngineLoop, dict[str, Any]]]) -> None:
        self._rebuild = rebuild
        self._asleep = False
        self.loop: EngineLoop | None
        self.loop, self.facts = rebuild()

    @property
    def has_work(self) -> bool:
        return self.loop is not None and self.loop.has_work

    def handle(self, message: Submit | Cancel | Query) -> Reply | Frame | None:
        if isinstance(message, Query) and message.kind in ("sleep", "wake"):
            return self._answer(message)
        if self._asleep:
            if isinstance(message, Query):
                return Reply(message.id, error="the engine is asleep")
            if isinstance(message, Cancel):
                return None
            try:
                self._wake()
            except PenstockError as error:
                return Frame([Delta(id=message.id, finish=FinishReason.ERROR, error=error.message, code=error.code)])
        assert self.loop is not None
        return self.loop.handle(message)

    def _answer(self, query: Query) -> Reply:
        """To `sleep` or `wake`."""
        try:
            if query.kind == "wake":
                return Reply(query.id, self._wake())
            self._sleep()
            return Reply(query.id)
        except PenstockError as error:
            return Reply(query.id, error=error.message)
        except Exception as error:
            logger.exception("the engine could not %s", query.kind)
            return Reply(query.id, error=f"the engine could not {query.kind}: {type(error).__name__}: {error}")

    def _sleep(self) -> None:
        if self._asleep:
            return
        assert self.loop is not None
        if self.loop.scheduler.has_work:
            raise InvalidRequest("the engine has requests: it can sleep when they have ended")
        if not self.loop.sleep():
            self.loop = None
            gc.unfreeze()
            gc.collect()  # the engine has reference cycles
            trim_heap()
        self._asleep = True

    def _wake(self) -> dict[str, Any]:
        if self.loop is None:
            self.loop, self.facts = self._rebuild()
        elif self._asleep:
            self.loop.wake()
        self._asleep = False
        return self.facts


def _start(links: EngineLinks, build: Build) -> EngineHost | None:
    link = links.starter
    start, *others = link.receive(None)  # the frontend waits for Ready before it sends more, unless it stops us
    assert isinstance(start, Start)
    if others:
        return None
    try:
        settings = from_wire(start.settings)
        host = EngineHost(
            lambda: build(settings, start.secret, lambda phase: link.send(StartPhase(phase)), start.transfer)
        )
        if start.listen is not None:
            links.listen(start.listen, lambda: host.facts)
    except PenstockError as error:
        link.send(Failure(error.code, error.message, error.param))
        return None
    except Exception as error:
        logger.exception("the engine could not start")
        link.send(Failure(PenstockError.code, f"the engine could not start: {type(error).__name__}: {error}"))
        return None
    link.send(Ready(host.facts))
    return host


def _turn(links: EngineLinks, host: EngineHost) -> bool:
    """Handle the messages that have arrived (wait for one if there is no work), then run a step. False: stop."""
    for link, message in links.receive(0.0 if host.has_work else None):
        if isinstance(message, Stop):
            return False
        assert not isinstance(message, Start)
        if reply := host.handle(message):
            links.send(link, reply)
    if host.loop is not None and (frame := host.loop.step()):
        links.send_frame(frame)
    return True
