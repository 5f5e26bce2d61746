"""One engine process under supervision, as the event loop sees it.

    STARTING ──► READY ──► RESTARTING ──► READY …          (CLOSED at the end)

When the process dies, requests whose clients have seen output end in an error. The others are submitted once more, to
another replica that is ready or to the next process: a request that kills engines must not do so for ever. They end in
an error if no engine restarts. A process that has work but makes no progress for a while is killed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from penstock.deployment.dispatch import Dispatcher, terminal_delta
from penstock.deployment.engine_queries import EngineQueries
from penstock.deployment.hang_watch import LOOKS, HangWatch
from penstock.deployment.outbox import Outbox
from penstock.deployment.prefix_tracker import PrefixTracker
from penstock.deployment.protocol import Call, EngineReport, Load, ModelCard, Role, State
from penstock.deployment.ticket import OpenSequence, Ticket
from penstock.errors import EngineDied, ShuttingDown
from penstock.flow import Cancel, Delta, FinishReason, Frame, Query, Reply, Submit, WatchedEngine
from penstock.flow.identity import UNNAMED, Source
from penstock.observe.events import Emit

logger = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0  # between restarts: doubled each time
HEALTHY_AFTER_S = 60.0  # an engine that lived so long was not to blame for its restart
DELIVERY_S = 0.005  # of frames in one turn of the event loop


class Replica:
    """A Deployment: takes calls and returns tickets, which end even if the process dies."""

    def __init__(
        self,
        spawn: Callable[[], WatchedEngine],
        source: Source = UNNAMED,
        emit: Emit | None = None,
        card: ModelCard | None = None,
        report: Callable[[], EngineReport | None] | None = None,
        wait_for_next: Callable[[], Awaitable[None]] | None = None,
        role: Role | None = None,
    ) -> None:
        """`spawn` starts an engine process, or links to one, and does not wait for it. `source` names the replica in
        events. `report` gives its last report of its load. `wait_for_next`: before a `spawn` for one that died."""
        self.role = role  # None: its model has no pools
        self.source = source
        self.name = f"{source.model}/{source.replica}"
        self.card = card or ModelCard(name=source.model)
        self._report = report
        self.find_peer: Callable[[Ticket], Replica | None] = lambda ticket: None  # that can take over a ticket
        self._ready_listeners: list[Callable[[dict[str, Any]], None]] = []
        self._state = State.STARTING
        self.draining = False  # it finishes what it has and takes nothing new
        self.facts: dict[str, Any] = {}
        self.prefixes: PrefixTracker | None = None  # what its cache is expected to hold
        self.restarts = 0
        self._spawn = spawn
        self._wait_for_next = wait_for_next
        self._engine = spawn()
        self._dispatcher = Dispatcher(lambda cancel: self._engine.cancel(cancel), source, emit)
        self._inbox: deque[Frame | Reply] = deque()  # messages of the engine, to be delivered
        self._outbox = Outbox(self._hand_over_all, self._orphan_submits, self._dispatcher.count_prompts)
        self._orphans: list[Submit] = []  # of a dead engine, for the next one or for another replica
        self._queries = EngineQueries(self._send_query)
        self._changed = asyncio.Event()  # the engine became ready, failed or died
        self._watched: tuple[int, ...] = ()  # its file descriptors
        self._hang_watch = HangWatch()

    @property
    def state(self) -> State:
        return State.DRAINING if self.draining and self._state is State.READY else self._state

    @property
    def answered_tokens(self) -> int:
        """Prompt tokens of all sequences that have begun to answer."""
        return self._dispatcher.answered_tokens

    @property
    def open(self) -> int:
        """Sequences that have not ended."""
        return len(self._dispatcher.sequences)

    def load(self) -> Load:
        report = self._report() if self._report is not None else None
        pending = self._dispatcher.pending_tokens
        slots = self.facts.get("max_sequences")
        if report is None:
            return Load(self.open, pending, slots=slots)
        running = max(0, self.open - report.waiting)
        return Load(self.open, pending, running, report.waiting, report.kv_use, report.t, slots)

    # --- the engine process

    def add_ready_listener(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Call it with the facts of every engine that becomes ready from now on."""
        self._ready_listeners.append(listener)

    def read_phases(self) -> None:
        """Pass on the phases that the engine has reported, before `start` waits for them."""
        self._engine.receive(0.0)

    async def start(self) -> None:
        """Wait for the first engine; raises what keeps it from starting. `supervise` goes on from there."""
        self._watch()
        while self._engine.facts is None:
            if self._engine.failure is not None or self._engine.dead is not None:
                error = self._engine.failure or EngineDied(self._engine.dead or "")
                self._unwatch()
                self._engine.close()
                self._state = State.CLOSED
                raise error
            await self._change()
        self._ready()

    async def supervise(self, hang_s: float) -> None:
        """Keep an engine running until the task is cancelled. One that has work may be silent for `hang_s`."""
        listening = asyncio.create_task(self._listen(hang_s))
        try:
            await self._replace()
        finally:
            listening.cancel()

    def close(self, *, at_once: bool = False) -> None:
        if self._retire():
            (self._engine.kill if at_once else self._engine.close)()

    async def unload(self) -> None:
        """`close`, while the event loop goes on."""
        if self._retire():
            await asyncio.to_thread(self._engine.close)

    def _retire(self) -> bool:
        """Have no part in anything from now on. False: it is closed already."""
        if self._state is State.CLOSED:
            return False
        self._state = State.CLOSED
        self._queries.fail_all(EngineDied("the engine is closed"))
        self._outbox.clear()
        self._unwatch()
        return True

    async def sleep(self) -> None:
        """Release weights and KV blocks; the process stays. No sequence may be open."""
        await self.ask("sleep")
        self._state = State.ASLEEP

    async def wake(self) -> None:
        if self._state is State.ASLEEP:
            self._engine.facts = await self._queries.ask("wake")
            self._ready()

    async def _replace(self) -> None:
        """Start another for each that dies."""
        wait_s, since = FIRST_WAIT_S, time.monotonic()
        while True:
            while self._engine.dead is None:
                await self._change()
            self._pump()  # its death may have been noticed elsewhere: it is not READY without an engine
            self._unwatch()
            self._engine.close()
            wait_s = FIRST_WAIT_S if time.monotonic() - since > HEALTHY_AFTER_S else wait_s
            logger.error("%s; starting another in %.1f s", self._engine.failure or self._engine.dead, wait_s)
            await asyncio.sleep(wait_s)
            if self._state is State.CLOSED:
                return
            wait_s, since = min(2 * wait_s, LONGEST_WAIT_S), time.monotonic()
            await self._restart()

    async def _restart(self) -> None:
        self.restarts += 1
        if self._wait_for_next is not None:
            await self._wait_for_next()
        try:
            self._engine = self._spawn()
        except OSError as error:  # no memory or no process to be had: as if it had died
            logger.error("no engine process can be started: %s", error)
        else:
            self._watch()
        while self._engine.facts is None and self._engine.dead is None:
            await self._change()
        if self._engine.dead is None:
            self._ready()
        else:
            self._give_up("the engine died and could not be started again")

    def _ready(self) -> None:
        assert self._engine.facts is not None
        self.facts = self._engine.facts
        if self.facts.get("prefix_caching"):
            self.prefixes = PrefixTracker(self.facts["kv_tokens"] // self.facts["block_size"], self.facts["block_size"])
        self._state = State.READY
        for listener in self._ready_listeners:
            listener(self.facts)
        orphans, self._orphans = self._orphans, []
        self._hand_over_all(orphans)

    async def _listen(self, hang_s: float) -> None:
        """Kill an engine that hangs."""
        watch = self._hang_watch
        watch.look(self._engine, busy=False)
        while True:
            await asyncio.sleep(hang_s / LOOKS)
            self._pump()  # messages that have arrived count, read or not
            silent = watch.look(self._engine, busy=self._queries.busy or (self.open > 0 and self._state is State.READY))
            if watch.hangs:
                self.end_engine(f"the engine gave no sign of life for {hang_s:g} s and was ended")
            elif silent and watch.ping is None:  # a prompt of many steps may have nothing to tell: is there progress?
                watch.ping = self._queries.send("stats")

    def _watch(self) -> None:
        self._watched = self._engine.handles
        for handle in self._watched:
            asyncio.get_running_loop().add_reader(handle, self._pump)
        self._look_again()

    def _unwatch(self) -> None:
        for handle in self._watched:
            asyncio.get_running_loop().remove_reader(handle)
        self._watched = ()

    async def _change(self) -> None:
        """Wait until the engine becomes ready, fails or dies."""
        self._changed.clear()
        await self._changed.wait()

    # --- requests

    def submit(self, call: Call) -> Ticket:
        """Have the engine work on one client's request; raises EngineDied while there is none."""
        if self.state is not State.READY:
            raise EngineDied("the engine is not ready; try again in a moment")
        ticket = Ticket(call.active_requests, self, cached_tokens=call.ready_tokens)
        self._dispatcher.tell_queued(call.active_requests)
        self._dispatcher.add(ticket)
        self._outbox.add(ticket.submits(), call.handoff)
        return ticket

    def _hand_over_all(self, submits: list[Submit]) -> bool:
        if self._state is State.READY:
            for submit in submits:
                self._hand_over(submit)
            self._look_again()
        return self._state is State.READY

    def _orphan_submits(self, submits: list[Submit]) -> None:
        """They wait for the next engine like the requests of the dead one."""
        self._orphans += submits
        self.hand_off()

    def cancel(self, ticket: Ticket) -> None:
        """The client has gone. The ticket stays until the engine has let go of its sequences."""
        ticket.left = True
        orphaned = {submit.id for submit in (*self._orphans, *self._outbox)}
        for cancel in (cancel for active in ticket.active_requests for cancel in active.cancels()):
            if cancel.id in orphaned:
                self._dispatcher.deliver(Delta(id=cancel.id, finish=FinishReason.CANCELLED))
            else:
                self._engine.cancel(cancel)
        self._dispatcher.flush()
        self._outbox.drop(orphaned - self._dispatcher.sequences.keys())
        self._orphans = [submit for submit in self._orphans if submit.id in self._dispatcher.sequences]
        self._look_again()

    def end_engine(self, why: str) -> None:
        """It hangs: another takes its place."""
        self._engine.end(why)
        self._pump()

    def end_all(self, why: str) -> None:
        """Give up on everything that is open: each request ends in an error."""
        self._orphans.clear()
        self._outbox.clear()
        for name in list(self._dispatcher.sequences):
            self._engine.cancel(Cancel(name))
            self._dispatcher.deliver(terminal_delta(name, why, ShuttingDown.code))
        self._dispatcher.flush()

    async def ask(self, kind: str, **arguments: Any) -> Any:
        """An engine's answer about itself; see `engine.loop` for what it knows."""
        if self._state is not State.READY:
            raise EngineDied(f"the engine is not ready, but {self.state.value}")
        return await self._queries.ask(kind, **arguments)

    def tell(self, kind: str, **arguments: Any) -> None:
        """`ask`, without waiting for the answer; an engine that has died need not know."""
        if self._state is State.READY:
            with suppress(EngineDied):
                self._queries.send(kind, **arguments)

    def _send_query(self, query: Query) -> None:
        self._engine.query(query)
        self._look_again()

    def _hand_over(self, submit: Submit) -> None:
        try:
            self._engine.submit(submit)
        except EngineDied:  # a moment ago: the pump has not seen it yet. No engine has worked on it
            self._orphans.append(submit)

    def _orphan(self, delta: Delta) -> bool:
        """Take a Delta that says that the engine has died: its sequence is kept for the next engine, if the client is
        there and has seen nothing of it yet. False: it is about something else."""
        if delta.code != EngineDied.code:
            return False
        sequence = self._dispatcher.sequences.get(delta.id)
        if sequence is None:
            return True
        ticket = sequence.ticket
        if ticket.left:
            self._dispatcher.deliver(Delta(id=delta.id, finish=FinishReason.CANCELLED))
        elif sequence.retried or ticket.taken:
            delta.error = f"{delta.error} while it worked on this request; it may be sent again"
            self._dispatcher.deliver(delta)
        else:
            sequence.retried = True
            self._dispatcher.remove(sequence)
            ticket.restart(sequence.id)
            self._dispatcher.add_sequence(sequence)
            self._dispatcher.tell_requeued(sequence)
            self._orphans.append(sequence.submit)
        return True

    def hand_off(self) -> None:
        """Give the requests of a dead engine to other replicas, if there are any."""
        orphans, self._orphans = self._orphans, []
        for submit in orphans:
            sequence = self._dispatcher.sequences[submit.id]
            peer = self.find_peer(sequence.ticket)
            if sequence.ticket.left:  # no client waits for it
                self._dispatcher.deliver(Delta(id=submit.id, finish=FinishReason.CANCELLED))
            elif peer is None and sequence.ticket.recovery is not None:  # another model need not wait for an engine
                self._dispatcher.deliver(terminal_delta(submit.id, "the engine died", EngineDied.code))
            elif peer is None:
                self._orphans.append(submit)
            else:
                self._dispatcher.remove(sequence)
                peer.adopt(sequence)
        self._dispatcher.flush()

    def adopt(self, sequence: OpenSequence) -> None:
        """Work on a sequence of a replica that died."""
        sequence.ticket.deployment = self
        self._dispatcher.add_sequence(sequence)
        self._dispatcher.tell_requeued(sequence)
        self._hand_over(sequence.submit)
        self._look_again()

    def _give_up(self, why: str) -> None:
        """End the requests of the dead engine: there is no next one."""
        orphans, self._orphans = self._orphans, []
        for submit in orphans:
            self._dispatcher.deliver(terminal_delta(submit.id, why, EngineDied.code))
        self._dispatcher.flush()

    # --- messages of the engine

    def _look_again(self) -> None:
        """Call after every send: see `WatchedEngine.handles`."""
        asyncio.get_running_loop().call_soon(self._pump)

    def _pump(self) -> None:
        if self._state is State.CLOSED:
            return
        until = time.monotonic() + DELIVERY_S
        # Until nothing is left: a Cancel sent on the way may swallow the signal of what came in meanwhile.
        while self._inbox or self._receive():
            self._take_in(self._inbox.popleft())
            if time.monotonic() > until:
                self._dispatcher.flush()
                self._look_again()
                return
        self._dispatcher.flush()
        if self._engine.dead is not None and self._state in (State.READY, State.ASLEEP):
            self._state = State.RESTARTING
            self._queries.fail_all(EngineDied(self._engine.dead))
            self.hand_off()
        if self._state is not State.READY:  # waiters wait for a change away from READY or back to it
            self._changed.set()

    def _receive(self) -> bool:
        """Whether there are messages to deliver."""
        self._inbox.extend(self._engine.receive(0.0))
        return bool(self._inbox)

    def _take_in(self, message: Frame | Reply) -> None:
        if isinstance(message, Reply):
            self._hang_watch.hear(message)
            self._queries.resolve(message)
        else:
            self._hang_watch.signs += 1
            self._dispatcher.dispatch(message, self._orphan)
