"""The engine's loop: receive → plan → forward → settle → send."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.adapters import AdapterCache
from penstock.engine.model_traces import ModelTraces, Trace
from penstock.errors import InvalidRequest, PenstockError
from penstock.flow import Backend, Cancel, Constraint, Delta, Frame, Query, Reply, Submit
from penstock.grammar.grammar_cache import GrammarCache
from penstock.schedule.scheduler import Scheduler

if TYPE_CHECKING:  # most engines need neither
    from penstock.engine.kv_publisher import KvPublisher
    from penstock.engine.transfer.block_transfers import BlockTransfers

logger = logging.getLogger(__name__)

MAX_FINDING = 1000  # characters of an integrity error, which may list every block
# How long an idle loop waits at a time for a constraint to be compiled, an adapter loaded, or a transfer to end.
THREAD_WAIT_S = 0.01


class EngineLoop:
    """Owns the scheduler and the backend. Its owner (`local`, `serve`) hands it messages and calls `step`."""

    def __init__(
        self,
        scheduler: Scheduler,
        backend: Backend,
        grammars: GrammarCache | None = None,
        trace: Trace | None = None,
        adapters: AdapterCache[Any] | None = None,
        publisher: KvPublisher | None = None,
        transfers: BlockTransfers | None = None,
    ) -> None:
        """`trace` recomputes a prompt layer by layer, on a thread beside the loop. `adapters` is the same object that
        the scheduler and the backend use; None: there are none. `publisher` publishes changes of the cache for other
        routers. `transfers` exchanges KV blocks with other engines."""
        self.publisher = publisher
        self.transfers = transfers
        self.scheduler = scheduler
        self.backend = backend
        self.grammars = grammars
        self.adapters = adapters
        self.held: dict[Constraint, list[str]] = {}  # sequences that wait for their constraints to be compiled
        traces = ModelTraces(trace)
        self.queries: dict[str, Callable[..., Any]] = {
            "stats": scheduler.stats,
            "check": self._check,
            "page_map": scheduler.views.page_map,
            "prefix_tree": scheduler.views.prefix_tree,
            "explain": scheduler.views.explain,
            "tenants": scheduler.views.tenants,
            "adapters": self._describe_adapters,
            "forget_adapter": self._forget_adapter,
            "trace_start": traces.start,
            "trace_result": traces.result,
            "trace_cancel": traces.cancel,
            **({} if transfers is None else transfers.queries),
        }

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or (self.transfers is not None and self.transfers.ending)

    def handle(self, message: Submit | Cancel | Query) -> Reply | None:
        """Handle a message of the frontend; a Query is answered at once. Never raises because of a client's mistake."""
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
        """Plan a step and launch it, settle the oldest one if it is due, and return the Deltas and the record."""
        deltas: list[Delta] = []
        try:
            if self.transfers is not None:
                self.transfers.tend()
            if self.held:
                self._release()
            if self.adapters is not None and self.adapters.loading:
                self._take_adapters(self.adapters)
            plan = self.scheduler.plan()
            if plan is not None:
                self.backend.launch(plan)
            if self.scheduler.in_flight > (self.scheduler.lookahead if plan is not None else 0):
                deltas = self.scheduler.settle(self.backend.collect())
            elif plan is None and self.held:
                self._release(wait_s=THREAD_WAIT_S)  # there is no other work
            elif plan is None and self.adapters is not None and self.adapters.loading:
                self._take_adapters(self.adapters, wait_s=THREAD_WAIT_S)
            elif plan is None and self.transfers is not None:
                self.transfers.tend(THREAD_WAIT_S)
        except BaseException as error:
            self._fail(error)
            if not isinstance(error, Exception):
                raise  # an interrupt: running sequences have been ended, and the engine can go on
        deltas += self.scheduler.drain()
        record = self.scheduler.take_record()
        if self.publisher is not None:
            self.publisher.publish()
        return Frame(deltas, record) if deltas or record else None

    def sleep(self) -> bool:
        """Release the backend's memory, and forget what was cached in it. False: the backend has to be built anew."""
        while self.adapters is not None and self.adapters.loading:  # for sequences that were cancelled
            self._take_adapters(self.adapters, wait_s=THREAD_WAIT_S)
        if not self.backend.release_memory():
            if self.publisher is not None:
                self.publisher.close()
            if self.transfers is not None:
                self.transfers.close()
            return False
        self.scheduler.clear_cache()
        if self.publisher is not None:
            self.publisher.publish()
        return True

    def wake(self) -> None:
        """Raises OutOfMemory, and stays asleep."""
        self.backend.restore_memory()

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
        """Queue the held sequences whose constraints have been compiled."""
        assert self.grammars is not None
        for constraint, error in self.grammars.take_finished(wait_s):
            for id in self.held.pop(constraint, ()):
                self.scheduler.release(id, error)

    def _take_adapters(self, adapters: AdapterCache[Any], wait_s: float = 0.0) -> None:
        for adapter, error in adapters.take_finished(wait_s):
            self.scheduler.finish_load(adapter, error)

    def _describe_adapters(self) -> list[dict[str, Any]]:
        return [] if self.adapters is None else self.adapters.describe()

    def _forget_adapter(self, name: str, version: str) -> dict[str, bool]:
        return {"forgotten": False, "in_use": False} if self.adapters is None else self.adapters.forget(name, version)

    def _answer(self, query: Query) -> Reply:
        handler = self.queries.get(query.kind)
        if handler is None:
            return Reply(query.id, error=f"unknown query {query.kind!r}; there are {', '.join(self.queries)}")
        try:
            if self.transfers is not None:
                self.transfers.tend()
            return Reply(query.id, value=handler(**query.arguments))
        except PenstockError as error:
            return Reply(query.id, error=error.message)
        except Exception as error:  # a query must not end sequences
            logger.exception("the query %s failed", query.kind)
            return Reply(query.id, error=f"the query failed: {type(error).__name__}: {error}")

    def _check(self) -> str | None:
        """The integrity error of scheduler and cache, None if there is none. Ends no sequence."""
        try:
            self.scheduler.check_integrity()
        except Exception as error:
            logger.exception("the integrity check has failed")
            text = error.message if isinstance(error, PenstockError) else f"{type(error).__name__}: {error}"
            return text[:MAX_FINDING]  # the log has all of it
        return None

    def _fail(self, error: BaseException) -> None:
        """A step failed: the running sequences end with an error, the waiting ones continue."""
        if isinstance(error, Exception):  # an interrupt is no failure, and the caller sees it
            logger.error("a step failed; its sequences end", exc_info=error)
        self.backend.reset()
        self.scheduler.fail(f"the engine failed while computing this request: {type(error).__name__}: {error}")
