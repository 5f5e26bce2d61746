"""The replicas of one model: each an engine process with its share of the machine.

When one dies, the others take over the requests whose clients have seen no output (`Replica.hand_off`), and it is
restarted. `scale` changes the number of replicas while they serve: a new one takes requests once it is up, and a
removed one finishes its requests first.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from penstock.deployment.prefill_pool import PrefillPool
from penstock.deployment.protocol import Call, Deployment, Pick, Role, State
from penstock.deployment.replica import Replica
from penstock.deployment.scale_policy import ScaleLimits
from penstock.deployment.ticket import Ticket
from penstock.errors import EngineDied, PenstockError

logger = logging.getLogger(__name__)

DRAIN_LOOK_S = 0.02

# The state of a set is that of its replica that is nearest to READY.
_ORDER = (
    State.READY, State.RESTARTING, State.STARTING, State.ASLEEP, State.DRAINING, State.UNLOADED, State.CLOSED,
)  # fmt: skip
ScaleListener = Callable[[int, int, str], None]  # replicas before, after, and why


def least_loaded(deployments: Sequence[Deployment], call: Call) -> Deployment:
    """The one with the fewest prompt tokens to compute, then with the fewest sequences."""

    def work(deployment: Deployment) -> tuple[int, int]:
        load = deployment.load()
        return load.open_tokens, load.open

    return min(deployments, key=work)


class ReplicaSet:
    """Belongs to one event loop. Empty until `start` and after `close`."""

    def __init__(
        self,
        make_replica: Callable[[int], Replica],
        count: int = 1,
        pick: Pick = least_loaded,
        *,
        limits: ScaleLimits | None = None,
        on_scaled: ScaleListener | None = None,
        prefill: PrefillPool | None = None,
    ) -> None:
        """`make_replica` starts the engine process of a replica and does not wait for it. `count`: replicas at the
        start. `limits`: None if that never changes. `prefill`: what those with the role PREFILL are for."""
        self._make_replica = make_replica
        self._start_count = count
        self.count = count  # replicas that take requests or start
        self.pick = pick
        self.limits = limits
        self.prefill = prefill
        self.replicas: list[Replica] = []
        self.start_failures = 0  # of replicas that `scale` added
        self._on_scaled = on_scaled
        self._ready_listeners: list[Callable[[dict[str, Any]], None]] = []
        self._supervising: dict[Replica, asyncio.Task[None]] = {}
        self._changing: dict[Replica, asyncio.Task[None]] = {}  # those that `scale` starts or drains
        self._hang_s: float | None = None

    @property
    def state(self) -> State:
        return min((replica.state for replica in self.replicas), key=_ORDER.index, default=State.UNLOADED)

    @property
    def facts(self) -> dict[str, Any]:
        """Of the first engine that is up; empty if there is none."""
        return next((replica.facts for replica in self.replicas if replica.state is State.READY), {})

    @property
    def open(self) -> int:
        """Sequences that have not ended."""
        return sum(replica.open for replica in self.replicas)

    def add_ready_listener(self, listener: Callable[[dict[str, Any]], None]) -> None:
        """Call it with the facts of every engine that becomes ready from now on."""
        self._ready_listeners.append(listener)
        for replica in self.replicas:
            replica.add_ready_listener(listener)

    def spawn(self) -> None:
        """Start the engine processes without waiting for them."""
        self.count = self._start_count
        for number in range(self.count):
            self._add(number)

    def _add(self, number: int) -> Replica:
        replica = self._make_replica(number)
        replica.find_peer = self._find_peer
        for listener in self._ready_listeners:
            replica.add_ready_listener(listener)
        replica.add_ready_listener(self._distribute)
        self.replicas.append(replica)
        return replica

    def read_phases(self) -> None:
        """Of the engines that were spawned, before `start`."""
        for replica in self.replicas:
            replica.read_phases()

    async def start(self) -> None:
        """Wait until all engines are up (`spawn` first); raises what keeps one from starting, and closes the others."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for replica in self.replicas:
                    tasks.create_task(replica.start())
            if self.prefill is not None:
                self.prefill.check(self.replicas)
        except BaseExceptionGroup as errors:
            self.close(at_once=True)
            raise errors.exceptions[0] from None
        except PenstockError:
            self.close(at_once=True)
            raise

    def supervise(self, hang_s: float) -> None:
        """Restart engines that die or hang, until `close`; also those that `scale` adds."""
        self._hang_s = hang_s
        for replica in self.replicas:
            self._supervise(replica)

    def _supervise(self, replica: Replica) -> None:
        if self._hang_s is not None and replica not in self._supervising and replica not in self._changing:
            self._supervising[replica] = asyncio.create_task(replica.supervise(self._hang_s))

    def close(self, *, at_once: bool = False) -> None:
        self._cancel_tasks()
        for replica in self.replicas:
            replica.close(at_once=at_once)
        self.replicas = []

    async def unload(self) -> None:
        """`close`, without holding up the event loop. No sequence may be open."""
        self._cancel_tasks()
        replicas, self.replicas = self.replicas, []
        for replica in replicas:
            await replica.unload()

    def _cancel_tasks(self) -> None:
        for task in (*self._supervising.values(), *self._changing.values()):
            task.cancel()
        self._supervising.clear()
        self._changing.clear()

    # --- their number

    def scale(self, target: int, reason: str) -> None:
        """Change how many replicas take requests; returns at once. Raises OSError if no process can be started."""
        before = self.count
        try:
            while self.count < target:
                self._grow()
            while self.count > target:
                self._shrink()
        finally:
            if self.count != before:
                self.tell_scaled(before, self.count, reason)

    def tell_scaled(self, before: int, after: int, reason: str) -> None:
        logger.info("replicas: %d, before that %d: %s", after, before, reason)
        if self._on_scaled is not None:
            self._on_scaled(before, after, reason)

    def _grow(self) -> None:
        """One that drains takes requests again; else a new one starts."""
        draining = [replica for replica in self.replicas if replica.state is State.DRAINING]
        if draining:
            busiest = max(draining, key=lambda replica: replica.open)
            busiest.draining = False
            self._changing.pop(busiest).cancel()
            self._supervise(busiest)
        else:
            taken = {replica.source.replica for replica in self.replicas}
            replica = self._add(next(number for number in range(len(taken) + 1) if number not in taken))
            self._changing[replica] = asyncio.create_task(self._bring_up(replica))
        self.count += 1

    def _shrink(self) -> None:
        """The one with the least to do goes; one that is not up yet first."""
        staying = [replica for replica in self.replicas if not replica.draining]
        replica = min(staying, key=lambda one: (one.state is State.READY, one.open, -one.source.replica))
        if (starting := self._changing.pop(replica, None)) is not None:
            starting.cancel()
        replica.draining = True
        self._changing[replica] = asyncio.create_task(self._drain(replica))
        self.count -= 1

    async def _bring_up(self, replica: Replica) -> None:
        try:
            await replica.start()
        except PenstockError as error:
            self.replicas.remove(replica)
            self.count -= 1
            self.start_failures += 1
            self.tell_scaled(self.count + 1, self.count, f"a replica could not be started: {error.message}")
            return
        finally:
            self._changing.pop(replica, None)
        self._supervise(replica)

    async def _drain(self, replica: Replica) -> None:
        """It is supervised until its last request has ended: if it dies, others take over what they can."""
        while replica.open:
            await asyncio.sleep(DRAIN_LOOK_S)
        self.replicas.remove(replica)
        if (supervising := self._supervising.pop(replica, None)) is not None:
            supervising.cancel()
        self._changing.pop(replica, None)
        await replica.unload()

    async def _settle(self) -> None:
        """Remove replicas that start or drain. No sequence may be open."""
        changing = list(self._changing)
        for replica in changing:
            self._changing.pop(replica).cancel()
            self.replicas.remove(replica)
            if (supervising := self._supervising.pop(replica, None)) is not None:
                supervising.cancel()
            await replica.unload()
        self.count = len(self.replicas)

    # --- their work

    async def sleep(self) -> None:
        """All of them or none: raises what keeps one from it, such as EngineDied."""
        await self._settle()
        try:
            for replica in self.replicas:
                if replica.state is not State.ASLEEP:
                    await replica.sleep()
        except PenstockError:
            await self.wake()
            raise

    async def wake(self) -> None:
        await asyncio.gather(*(replica.wake() for replica in self.replicas))

    def submit(self, call: Call) -> Ticket:
        ready = [
            replica for replica in self.replicas if replica.state is State.READY and replica.name not in call.exclude
        ]
        if not ready:
            raise EngineDied("the engine is not ready; try again in a moment")
        alone = self.limits is None and self.count == 1
        if self.prefill is None:
            return (ready[0] if alone else self.pick(ready, call)).submit(call)
        chosen = self.pick(_answering(ready), call)
        assert isinstance(chosen, Replica)
        prefillers = [replica for replica in ready if replica.role is Role.PREFILL]
        call.handoff = self.prefill.plan(call, chosen, prefillers, self.pick)
        return chosen.submit(call)

    def end_all(self, why: str) -> None:
        for replica in self.replicas:
            replica.end_all(why)

    def _find_peer(self, ticket: Ticket) -> Replica | None:
        """A replica that can take over a ticket of one that died; the one that has part of it already comes first."""
        ready = [replica for replica in self.replicas if replica.state is State.READY]
        owner = ticket.deployment
        if isinstance(owner, Replica) and owner in ready:
            return owner
        return min(_answering(ready), key=lambda replica: replica.open, default=None)

    def _distribute(self, _: dict[str, Any]) -> None:
        """A replica is ready: it takes over the requests of replicas that died."""
        for replica in self.replicas:
            if replica.state is not State.READY:
                replica.hand_off()


def _answering(ready: list[Replica]) -> list[Replica]:
    """The replicas that answer requests; prefill replicas only while there is no other."""
    return [replica for replica in ready if replica.role is not Role.PREFILL] or ready
