"""A prompt that a prefill replica computes: a request without a client, whose output is ignored."""

from __future__ import annotations

import asyncio

from penstock.flow import Cancel, Chunk, Delta, Submit
from penstock.stream.active_request import ActiveRequest
from penstock.stream.choice import ChoiceStream, NoText


class PrefillRequest(ActiveRequest):
    def __init__(self, submit: Submit) -> None:
        """Its id is empty: the journal has no such request."""
        super().__init__("", [submit], lambda index: ChoiceStream(index, submit.params, NoText()))
        self.ended: asyncio.Future[Delta] = asyncio.get_running_loop().create_future()

    def push(self, delta: Delta) -> tuple[Chunk | None, Cancel | None]:
        if delta.finish is not None:
            self.choices[0].done = True
            if not self.ended.done():
                self.ended.set_result(delta)
        return None, None
