"""One frontend process, as the control process sees it: its socket, and what it has reserved and opened.

Calls are answered as they come. What the journal gets is applied in order: a frontend's part of a step may be here
before the step's record, which the engine sends first; it waits for that then.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple, TypeVar

import msgspec

from penstock.errors import PenstockError
from penstock.flow import FinishReason
from penstock.frontends import messages
from penstock.frontends.messages import (
    Answer,
    Complete,
    Counts,
    DeliveredWire,
    Drained,
    EndEngine,
    Failed,
    Fence,
    FetchResponse,
    FlushedWire,
    FromControl,
    Happened,
    Listening,
    PromptSent,
    Release,
    Reserve,
    SequenceEnded,
    ServeAdapters,
    Status,
    StoreResponse,
    ToControl,
    Used,
)
from penstock.gateway.ledger.record import UsageRecord
from penstock.gateway.limits.reservation import Charge, Reservation
from penstock.http.response_store import ResponseStore
from penstock.http.service import Service
from penstock.observe import events
from penstock.observe.trace.journal import Journal
from penstock.system import typed
from penstock.system.framed_socket import FramedSocket

logger = logging.getLogger(__name__)

RECORD_S = 1.0  # a frontend's part of a step waits so long for the step's record
LOOK_S = 0.005
HEARS_S = 3.0  # since it last said anything, which it does every second
Number = TypeVar("Number", int, float)
DIED = "frontend_died"  # the code of its requests in the journal


class OpenAccount(NamedTuple):
    """A request that has reserved, and is not settled."""

    held: Reservation | None  # None: there are no limits, only a ledger
    tenant: str
    key: str
    model: str
    since: float


class FrontendPeer:
    """Belongs to the control process's event loop."""

    def __init__(
        self,
        sock: socket.socket,
        service: Service,
        journal: Journal | None,
        *,
        on_gone: Callable[[], None],
        end_engine: Callable[[EndEngine], None],
        pass_on: Callable[[PromptSent], None],
    ) -> None:
        """`pass_on`: to the other frontends."""
        self.listening = asyncio.Event()
        self.drained = asyncio.Event()
        self.gone = False
        self.counts = Counts()
        self.seen = time.monotonic()  # when it last said anything
        self._framed = FramedSocket(sock)
        self._service = service
        self._journal = journal
        self._on_gone = on_gone
        self._end_engine = end_engine
        self._pass_on = pass_on
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[list[ToControl]] = typed.msgpack_decoder(list[ToControl])
        self._accounts: dict[str, OpenAccount] = {}  # by request
        self._reserving: dict[str, asyncio.Task[None]] = {}  # by request
        self._requests: set[str] = set()  # open in the journal
        self._queue: deque[DeliveredWire | FlushedWire | Happened | SequenceEnded | Used | Status] = deque()
        self._held_since: float | None = None  # the first of the queue waits for its record
        self._fences: dict[int, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._writing = False
        asyncio.get_running_loop().add_reader(self._framed.fileno(), self._read)

    # --- to the frontend

    def send(self, message: FromControl) -> None:
        if self.gone:
            return
        self._framed.send(self._encoder.encode(message))
        if self._framed.unsent_bytes and not self._writing:
            self._writing = True
            asyncio.get_running_loop().add_writer(self._framed.fileno(), self._write)

    @property
    def hears(self) -> bool:
        """It serves, and has said something of late: what it need not know is not kept for one that hangs."""
        return self.listening.is_set() and time.monotonic() - self.seen < HEARS_S

    async def fence(self, message: Fence | ServeAdapters) -> None:
        """Returns when the frontend has done what the message says, and all that it has told by then is applied here;
        or when it is gone. One that is starting is not waited for."""
        self.send(message)
        if self.gone or not self.listening.is_set():
            return
        done = self._fences[message.number] = asyncio.get_running_loop().create_future()
        try:
            await done
        finally:
            self._fences.pop(message.number, None)

    def close(self) -> None:
        if not self.gone:
            self._lose()

    def _write(self) -> None:
        self._framed.flush()
        if not self._framed.unsent_bytes:
            self._writing = False
            asyncio.get_running_loop().remove_writer(self._framed.fileno())

    # --- from the frontend

    def _read(self) -> None:
        try:
            for data in self._framed.receive():
                self.seen = time.monotonic()
                for message in self._decoder.decode(data):
                    self._handle(message)
        except (
            msgspec.DecodeError
        ) as error:  # what it says cannot be relied on any more; it ends when its socket closes
            logger.error("a frontend sent a message that is none: %s", error)
            self._lose()
            return
        self._apply()
        if self._framed.gone:
            self._lose()

    def _handle(self, message: ToControl) -> None:
        match message:
            case Reserve():
                self._reserving[message.request] = self._run(self._reserve(message))
            case Release():
                self._run(self._release(message))
            case Complete():
                self._run(self._complete(message))
            case FetchResponse():
                get = self._store(message.store).get(message.tenant, message.name, param=message.param)
                self._run(self._answer(message.call, get))
            case StoreResponse():
                put = self._store(message.store).put(message.tenant, message.name, message.response)
                self._run(self._answer(message.call, put))
            case EndEngine():
                self._end_engine(message)
            case PromptSent():
                self._pass_on(message)
            case Listening():
                self.listening.set()
            case Drained():
                self.drained.set()
            case _:
                self._queue.append(message)

    def _store(self, name: str) -> ResponseStore:
        return self._service.completions if name == self._service.completions.what else self._service.responses

    # --- calls

    def _run(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _answer(self, call: int, work: Coroutine[Any, Any, Any]) -> None:
        try:
            value = await work
        except PenstockError as error:
            self.send(Answer(call, failed=Failed.of(error)))
        except Exception as error:
            logger.exception("a call of a frontend failed")
            self.send(Answer(call, failed=Failed.of(PenstockError(f"{type(error).__name__}: {error}"))))
        else:
            if call:
                self.send(Answer(call, msgspec.to_builtins(value, builtin_types=(bytes,))))

    async def _reserve(self, message: Reserve) -> None:
        await self._answer(message.call, self._reserve_now(message))
        self._reserving.pop(message.request, None)

    async def _reserve_now(self, message: Reserve) -> Reservation:
        accounting, identity = self._service.accounting, message.identity
        accounting.check_available()
        owner = (identity.tenant, identity.key)
        held = Reservation("", message.request, *owner, message.charge)
        if accounting.limiter is not None:
            held = await accounting.limiter.reserve(identity, message.request, message.charge)
        limited = None if accounting.limiter is None else held
        if self.gone:  # meanwhile: nothing was dispatched
            await self._give_back(limited)
        else:
            self._accounts[message.request] = OpenAccount(limited, *owner, message.model, time.monotonic())
        return held

    async def _release(self, message: Release) -> None:
        if (reserving := self._reserving.get(message.request)) is not None:
            await asyncio.wait({reserving})
        account = self._accounts.pop(message.request, None)
        await self._answer(message.call, self._give_back(None if account is None else account.held))

    async def _give_back(self, held: Reservation | None) -> None:
        if held is not None and self._service.accounting.limiter is not None:
            await self._service.accounting.limiter.settle(held, Charge(), never_began=True)

    async def _complete(self, message: Complete) -> None:
        account = self._accounts.pop(message.request, None)  # None: it is complete already
        await self._answer(message.call, self._complete_now(message, account))

    async def _complete_now(self, message: Complete, account: OpenAccount | None) -> None:
        if account is not None:
            await self._service.accounting.complete(message.record, account.held, awaited=message.awaited)

    # --- what the journal and the metrics get

    def _apply(self) -> None:
        """In order, up to a part of a step whose record is not here."""
        while self._queue:
            message = self._queue[0]
            if isinstance(message, DeliveredWire) and not self._has_record(message):
                if self._held_since is None:
                    self._held_since = time.monotonic()
                if time.monotonic() < self._held_since + RECORD_S and not self.gone:
                    asyncio.get_running_loop().call_later(LOOK_S, self._apply)
                    return
            self._held_since = None
            self._queue.popleft()
            self._apply_one(message)

    def _has_record(self, message: DeliveredWire) -> bool:
        if not message.step or self._journal is None:
            return True
        trace = self._journal.replica(message.source)
        return trace.steps.last >= trace.ring_number(message.step)

    def _apply_one(self, message: DeliveredWire | FlushedWire | Happened | SequenceEnded | Used | Status) -> None:
        match message:
            case SequenceEnded():
                counts = (message.prompt_tokens, message.cached_tokens, message.output_tokens)
                self._service.metrics.count_ended(message.source, message.finish, *counts, message.timings)
            case Used():
                accounting = self._service.accounting
                accounting.totals.add(message.record)
                accounting.spend.add(message.record.tenant, message.record.microusd)
            case Status():
                self._adopt(message.counts)
                if (waiting := self._fences.get(message.fence)) is not None and not waiting.done():
                    waiting.set_result(None)
            case _:
                event = messages.from_wire(message)
                if isinstance(event, events.Accepted):
                    self._requests.add(event.request)
                elif isinstance(event, events.Finished | events.Rejected):
                    self._requests.discard(event.request)
                if self._journal is not None:
                    self._journal.record(event)

    def _adopt(self, counts: Counts) -> None:
        """Add what it has counted since the last time to the counters of the server."""
        gateway, before = self._service.gateway, self.counts
        self.counts = counts
        known = dict(before.decisions)
        for name, count in counts.decisions:
            gateway.router.track(name).decisions += count - known.get(name, 0)
        for name in counts.open_circuits:
            gateway.router.track(name)
        gateway.fallbacks.update(_increase(before.fallbacks, counts.fallbacks))
        gateway.estimated_usage.update(_increase(before.estimated_usage, counts.estimated_usage))
        if gateway.safety is not None:
            gateway.safety.hits.update(_increase(before.safety_hits, counts.safety_hits))
            hooks = {hook.rule: hook for hook in gateway.safety.rules.hooks}
            for (rule, kind), count in _increase(before.hook_failures, counts.hook_failures).items():
                hooks[rule].failures[kind] += count
        pools = {model.name: model.replicas.prefill for model in self._service.models.local}
        for (name, what), more in _increase(before.transfers, counts.transfers).items():
            if (pool := pools.get(name)) is not None:
                pool.totals.sums[what] += more
        for (name, cause), count in _increase(before.transfer_failures, counts.transfer_failures).items():
            if (pool := pools.get(name)) is not None:
                pool.totals.failures[cause] += count

    # --- its end

    def _lose(self) -> None:
        """It has gone, with its requests. All that it had sent has been read."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._framed.fileno())
        if self._writing:
            loop.remove_writer(self._framed.fileno())
        self.gone = True
        self._framed.close()
        self._apply()
        for waiting in self._fences.values():
            if not waiting.done():
                waiting.set_result(None)
        self._close_accounts()
        self._close_requests()
        self.counts = Counts()
        for event in (self.listening, self.drained):  # nothing is to wait for it
            event.set()
        self._on_gone()

    def _close_accounts(self) -> None:
        """Nothing is charged: what of an answer reached its client is not known. The ledger says that there was one."""
        accounting, now = self._service.accounting, time.monotonic()
        accounts, self._accounts = self._accounts, {}
        for request, account in accounts.items():
            record = UsageRecord(
                request=request, t=accounting.clock(), tenant=account.tenant, key=account.key, model=account.model,
                replica=0, input=0, cached=0, output=0, latency_s=round(now - account.since, 6), ttft_s=None,
                microusd=0, finish=FinishReason.ERROR.value,
            )  # fmt: skip
            accounting.run(accounting.complete(record, account.held, awaited=False))

    def _close_requests(self) -> None:
        """In the journal, and in the metrics."""
        journal, requests = self._journal, self._requests
        self._requests = set()
        why, now = "the frontend process died", time.monotonic()
        for name in requests if journal is not None else ():
            assert journal is not None
            if (trace := journal.open.get(name)) is None:
                continue
            if not trace.sequences:
                journal.record(events.Rejected(name, now, 503, DIED, why))
                continue
            ended = [
                events.Ended(one.number, FinishReason.ERROR, None, one.prompt_tokens, one.cached, one.output_tokens, "")
                for one in trace.sequences
            ]
            for place, one in enumerate(ended):
                prompt = (one.prompt_tokens, one.cached_tokens) if place == 0 else (0, 0)
                self._service.metrics.count_ended(trace.source, one.finish, *prompt, one.output_tokens, None)
            journal.record(events.Finished(name, now, ended, DIED, why))


def _increase(before: list[tuple[Any, Number]], now: list[tuple[Any, Number]]) -> dict[Any, Number]:
    known = dict(before)
    return {key: count - known.get(key, 0) for key, count in now if count != known.get(key, 0)}
