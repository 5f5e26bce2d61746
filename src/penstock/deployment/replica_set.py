"""The replicas of one model: each an engine process with its share of the machine.

When one dies, the others take over what its clients have seen nothing of (`Replica.hand_off`), and it is restarted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from penstock.deployment.protocol import Call, Deployment, Pick, State
from penstock.deployment.replica import Replica
from penstock.deployment.ticket import Ticket
from penstock.errors import EngineDied

# The state of a set is that of its replica that is nearest to READY.
_ORDER = (State.READY, State.RESTARTING, State.STARTING, State.ASLEEP, State.UNLOADED, State.CLOSED)


def least_loaded(deployments: Sequence[Deployment], call: Call) -> Deployment:
    """The one with the fewest prompt tokens to compute, then with the fewest sequences."""

    def work(deployment: Deployment) -> tuple[int, int]:
        load = deployment.load()
        return load.open_tokens, load.open

    return min(deployments, key=work)


class ReplicaSet:
    """Belongs to one event loop. Empty until `start` and after `close`."""

    def __init__(self, make_replica: Callable[[int], Replica], count: int = 1, pick: Pick = least_loaded) -> None:
        """`make_replica` starts the engine process of a replica and does not wait for it."""
        self._make_replica = make_replica
        self.count = count
        self.pick = pick
        self.replicas: list[Replica] = []
        self._ready_listeners: list[Callable[[dict[str, Any]], None]] = []
        self._supervising: list[asyncio.Task[None]] = []

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
        for number in range(self.count):
            replica = self._make_replica(number)
            replica.find_peer = self._find_peer
            for listener in self._ready_listeners:
                replica.add_ready_listener(listener)
            replica.add_ready_listener(self._distribute)
            self.replicas.append(replica)

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
        except BaseExceptionGroup as errors:
            self.close(at_once=True)
            raise errors.exceptions[0] from None

    def supervise(self, hang_s: float) -> None:
        """Restart engines that die or hang, until `close`."""
        self._supervising = [asyncio.create_task(replica.supervise(hang_s)) for replica in self.replicas]

    def close(self, *, at_once: bool = False) -> None:
        for task in self._supervising:
            task.cancel()
        for replica in self.replicas:
            replica.close(at_once=at_once)
        self.replicas, self._supervising = [], []

    async def unload(self) -> None:
        """`close`, without holding up the event loop. No sequence may be open."""
        for task in self._supervising:
            task.cancel()
        replicas, self.replicas, self._supervising = self.replicas, [], []
        for replica in replicas:
            await replica.unload()

    async def sleep(self) -> None:
        for replica in self.replicas:
            await replica.sleep()

    async def wake(self) -> None:
        await asyncio.gather(*(replica.wake() for replica in self.replicas))

    def submit(self, call: Call) -> Ticket:
        ready: list[Deployment] = [
            replica for replica in self.replicas if replica.state is State.READY and replica.name not in call.exclude
        ]
        if not ready:
            raise EngineDied("the engine is not ready; try again in a moment")
        return (ready[0] if self.count == 1 else self.pick(ready, call)).submit(call)

    def end_all(self, why: str) -> None:
        for replica in self.replicas:
            replica.end_all(why)

    def _find_peer(self, ticket: Ticket) -> Replica | None:
        """A replica that can take over a ticket of one that died; the one that has part of it already comes first."""
        ready = [replica for replica in self.replicas if replica.state is State.READY]
        owner = ticket.deployment
        if isinstance(owner, Replica) and owner in ready:
            return owner
        return min(ready, key=lambda replica: replica.open, default=None)

    def _distribute(self, _: dict[str, Any]) -> None:
        """A replica is ready: it takes over what others that died have left."""
        for replica in self.replicas:
            if replica.state is not State.READY:
                replica.hand_off()
