"""The engine's loop: receive → plan → forward → settle → send."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock.errors import PenstockError
from penstock.flow import Cancel, Delta, Frame, Query, Reply, Runner, Submit
from penstock.schedule.scheduler import Scheduler

logger = logging.getLogger(__name__)


class EngineLoop:
    """Owns the scheduler and the runner; whoever owns the loop brings the messages and turns the crank."""

    def __init__(self, scheduler: Scheduler, runner: Runner) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.queries: dict[str, Callable[[], Any]] = {"stats": scheduler.stats, "check": scheduler.check_integrity}

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def handle(self, message: Submit | Cancel | Query) -> Reply | None:
        match message:
            case Submit():
                try:
                    self.scheduler.submit(message)
                except PenstockError as error:
                    self.scheduler.refuse(message, error)
            case Cancel():
                self.scheduler.cancel(message)
            case Query():
                return self._answer(message)
        return None

    def step(self) -> Frame | None:
        """One turn: plan a step and launch it, settle the oldest one that is due, and say what has come of it."""
        deltas: list[Delta] = []
        try:
            plan = self.scheduler.plan()
            if plan is not None:
                self.runner.launch(plan)
            if self.scheduler.in_flight > (self.scheduler.lookahead if plan is not None else 0):
                deltas = self.scheduler.settle(self.runner.collect())
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise  # an interrupt: the sequences that ran have been ended, the engine itself is fit to go on
        deltas += self.scheduler.drain()
        return Frame(deltas) if deltas else None

    def _answer(self, query: Query) -> Reply:
        answer = self.queries.get(query.kind)
        if answer is None:
            return Reply(query.id, error=f"unknown query {query.kind!r}; there are {', '.join(self.queries)}")
        try:
            return Reply(query.id, value=answer())
        except PenstockError as error:
            return Reply(query.id, error=error.message)

    def _fail(self, error: BaseException) -> None:
        """A step went wrong: the sequences that run cannot be continued, but those that wait can."""
        logger.error("a step failed; its sequences end", exc_info=error)
        self.runner.reset()
        self.scheduler.fail(f"the engine failed while computing this request: {type(error).__name__}: {error}")
