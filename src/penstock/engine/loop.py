"""The engine's loop: receive → plan → forward → settle → send."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from penstock.errors import InvalidRequest, PenstockError
from penstock.flow import Backend, Cancel, Constraint, Delta, Frame, Query, Reply, Submit
from penstock.grammar.grammar_cache import GrammarCache
from penstock.schedule.scheduler import Scheduler

logger = logging.getLogger(__name__)

MAX_FINDING = 1000  # characters of what is wrong: it may list every block
COMPILE_WAIT_S = 0.01  # how long an idle loop waits at a time for a constraint to be compiled


class EngineLoop:
    """Owns the scheduler and the backend. Its owner (`local`, `serve`) hands it messages and calls `step`."""

    def __init__(self, scheduler: Scheduler, backend: Backend, grammars: GrammarCache | None = None) -> None:
        self.scheduler = scheduler
        self.backend = backend
        self.grammars = grammars
        self.held: dict[Constraint, list[str]] = {}  # sequences that wait for their constraints to be compiled
        self.queries: dict[str, Callable[..., Any]] = {
            "stats": scheduler.stats,
            "check": self._check,
            "page_map": scheduler.views.page_map,
            "prefix_tree": scheduler.views.prefix_tree,
            "explain": scheduler.views.explain,
        }

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work

    def handle(self, message: Submit | Cancel | Query) -> Reply | None:
        """Take in a message from the frontend; a Query is answered at once. Never raises for what a client did."""
        match message:
            case Submit():
                try:
                    self._submit(message)
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
            if self.held:
                self._release()
            plan = self.scheduler.plan()
            if plan is not None:
                self.backend.launch(plan)
            if self.scheduler.in_flight > (self.scheduler.lookahead if plan is not None else 0):
                deltas = self.scheduler.settle(self.backend.collect())
            elif plan is None and self.held:
                self._release(wait_s=COMPILE_WAIT_S)  # there is nothing else to do
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise  # an interrupt: the sequences that ran have been ended, the engine itself is fit to go on
        deltas += self.scheduler.drain()
        record = self.scheduler.take_record()
        return Frame(deltas, record) if deltas or record else None

    def _submit(self, message: Submit) -> None:
        constraint = message.params.constraint if message.task == "generate" else None
        if constraint is None:
            return self.scheduler.submit(message)
        if self.grammars is None:
            raise InvalidRequest("this engine has no vocabulary to constrain", param=constraint.param)
        held = not self.grammars.has(constraint)
        self.scheduler.submit(message, held=held)
        if held:
            self.grammars.prepare(constraint)
            self.held.setdefault(constraint, []).append(message.id)
        return None

    def _release(self, wait_s: float = 0.0) -> None:
        """Let those go on whose constraints have been compiled meanwhile."""
        assert self.grammars is not None
        for constraint, error in self.grammars.take_finished(wait_s):
            for id in self.held.pop(constraint, ()):
                self.scheduler.release(id, error)

    def _answer(self, query: Query) -> Reply:
        answer = self.queries.get(query.kind)
        if answer is None:
            return Reply(query.id, error=f"unknown query {query.kind!r}; there are {', '.join(self.queries)}")
        try:
            return Reply(query.id, value=answer(**query.arguments))
        except PenstockError as error:
            return Reply(query.id, error=error.message)
        except Exception as error:  # whoever only wants to look must not end the sequences
            logger.exception("the query %s failed", query.kind)
            return Reply(query.id, error=f"the query failed: {type(error).__name__}: {error}")

    def _check(self) -> str | None:
        """What is wrong with the scheduler's and the cache's books; None: nothing. Ends nothing either way."""
        try:
            self.scheduler.check_integrity()
        except Exception as error:
            logger.exception("the integrity check has failed")
            found = error.message if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
            return found[:MAX_FINDING]  # the log has all of it
        return None

    def _fail(self, error: BaseException) -> None:
        """A step went wrong: the sequences that run cannot be continued, but those that wait can."""
        if isinstance(error, Exception):  # an interrupt is no mistake of ours, and whoever called sees it
            logger.error("a step failed; its sequences end", exc_info=error)
        self.backend.reset()
        self.scheduler.fail(f"the engine failed while computing this request: {type(error).__name__}: {error}")
