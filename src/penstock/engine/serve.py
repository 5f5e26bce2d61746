"""The engine process's side: build the engine, then serve the frontend until it sends Stop or is gone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock.engine.ipc import IpcLink, PeerGone
from penstock.engine.loop import EngineLoop
from penstock.errors import PenstockError
from penstock.flow import Failure, Ready, Start
from penstock.flow.messages import StartPhase, Stop, ToEngine
from penstock.settings import Settings, from_wire

logger = logging.getLogger(__name__)

Report = Callable[[str], None]  # of the phase of the start that begins
Build = Callable[[Settings, bytes, Report], tuple[EngineLoop, dict[str, Any]]]


def serve(link: IpcLink[ToEngine], build: Build) -> int:
    """Runs until the end; returns the exit code of the process."""
    try:
        loop = _start(link, build)
        if loop is None:
            return 1
        while _turn(link, loop):
            pass
    except PeerGone:
        logger.info("the frontend is gone; ending")
    return 0


def _start(link: IpcLink[ToEngine], build: Build) -> EngineLoop | None:
    start, *others = link.receive(None)  # the frontend waits for Ready before it sends more, unless it stops us
    assert isinstance(start, Start)
    if others:
        return None
    try:
        loop, facts = build(from_wire(start.settings), start.secret, lambda phase: link.send(StartPhase(phase)))
    except PenstockError as error:
        link.send(Failure(error.code, error.message, error.param))
        return None
    except Exception as error:
        logger.exception("the engine could not start")
        link.send(Failure(PenstockError.code, f"the engine could not start: {type(error).__name__}: {error}"))
        return None
    link.send(Ready(facts))
    return loop


def _turn(link: IpcLink[ToEngine], loop: EngineLoop) -> bool:
    """Handle the messages that have arrived (wait for one if there is no work), then run a step. False: stop."""
    for message in link.receive(0.0 if loop.has_work else None):
        if isinstance(message, Stop):
            return False
        assert not isinstance(message, Start)
        if reply := loop.handle(message):
            link.send(reply)
    if frame := loop.step():
        link.send(frame.packed())
    return True
