"""The observer: what the debug routes read, and the task that samples the history and evaluates the objectives."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from penstock.errors import PenstockError
from penstock.flow.identity import Source
from penstock.flow.record import Blocks
from penstock.observe.gpu import Gpu
from penstock.observe.history import INTERVAL_S, History
from penstock.observe.machine import Machine
from penstock.observe.slo.monitor import SloMonitor
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.views import View

logger = logging.getLogger(__name__)

ANSWER_WAIT_S = 1.0  # an engine in a long step answers later: the gauges of its last step stay until then

Ask = Callable[[], Awaitable[dict[str, Any]]]


class Observer:
    def __init__(self, journal: Journal, history: History, monitor: SloMonitor, view: View, gpu: Gpu) -> None:
        self.journal = journal
        self.history = history
        self.monitor = monitor
        self.view = view
        self.gpu = gpu
        self.machine = Machine()

    async def run(
        self, find_replicas: Callable[[], Mapping[Source, Ask]], engine_pids: Callable[[], Iterable[int]]
    ) -> None:
        """Until the task is cancelled. `find_replicas` gives the replicas that are there, and what asks each of them
        for its stats; `engine_pids` the ids of their processes."""
        while True:
            await asyncio.sleep(INTERVAL_S)
            for source, ask in find_replicas().items():
                await self.refresh(source, ask)
            try:
                self.history.sample(self.gpu.read(), self.machine.read(engine_pids()))
                self.monitor.evaluate()
            except Exception:  # observing must not break serving
                logger.exception("sampling the history or evaluating the objectives failed")

    async def refresh(self, source: Source, ask: Ask) -> None:
        """Ask a replica's engine for its gauges, if no step has brought them lately."""
        level = self.journal.replica(source).level
        if self.journal.clock() - level.t < ANSWER_WAIT_S:
            return
        try:
            async with asyncio.timeout(ANSWER_WAIT_S):
                stats = await ask()
        except (PenstockError, TimeoutError):
            return
        names = Blocks._fields
        level.blocks = [Blocks(*(usage[name] for name in names)) for usage in stats["blocks"]]
        level.waiting, level.t = stats["waiting"], self.journal.clock()
