"""Submits that are not at their replica's engine yet: many go in portions, and some wait until a prefill replica has
computed their prompt."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Iterator

from penstock.deployment.handoff import Handoff
from penstock.flow import Submit

SUBMITS_PER_TURN = 128


class Outbox:
    """Of one replica. Belongs to one event loop."""

    def __init__(
        self,
        hand_over: Callable[[list[Submit]], bool],
        orphan: Callable[[list[Submit]], None],
        on_failed: Callable[[list[Submit]], None],
    ) -> None:
        """`hand_over` gives submits to the engine; False: there is none, and `orphan` takes all that are due.
        `on_failed`: the handoff of these failed."""
        self._hand_over = hand_over
        self._orphan = orphan
        self._on_failed = on_failed
        self._unsent: deque[Submit] = deque()
        self._deferred: dict[str, tuple[Submit, asyncio.Task[None]]] = {}  # by id

    def __iter__(self) -> Iterator[Submit]:
        yield from self._unsent
        yield from (submit for submit, _ in self._deferred.values())

    def add(self, submits: list[Submit], handoff: Handoff | None = None) -> None:
        """Send them, once the handoff has ended, well or not."""
        if handoff is not None:
            task = asyncio.create_task(self._wait(submits, handoff))
            self._deferred |= {submit.id: (submit, task) for submit in submits}
            return
        self._unsent.extend(submits)
        if len(self._unsent) == len(submits):  # else `_send_more` is on its way
            self._send_more()

    def drop(self, names: Collection[str]) -> None:
        """These are not sent any more. A handoff that no request waits for ends."""
        self._unsent = deque(submit for submit in self._unsent if submit.id not in names)
        tasks = {found[1] for name in names if (found := self._deferred.pop(name, None)) is not None}
        for task in tasks - {task for _, task in self._deferred.values()}:
            task.cancel()

    def clear(self) -> None:
        self.drop([submit.id for submit in self])

    async def _wait(self, submits: list[Submit], handoff: Handoff) -> None:
        if not await handoff.run():
            self._on_failed(submits)
        self.add([submit for submit in submits if self._deferred.pop(submit.id, None) is not None])

    def _send_more(self) -> None:
        """The next portion; the loop's other work has a turn before the one after it."""
        portion = [self._unsent.popleft() for _ in range(min(SUBMITS_PER_TURN, len(self._unsent)))]
        if not self._hand_over(portion):
            portion += self._unsent
            self._unsent.clear()
            self._orphan(portion)
        elif self._unsent:
            asyncio.get_running_loop().call_soon(self._send_more)
