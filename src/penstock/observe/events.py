"""What the stages tell while they work. A stage calls `emit` with one of these; `assemble` decides who listens.

    Accepted ─► Parsed ─► Validated ─► (Rendered ─► Tokenized)* ─► Queued ─► Delivered* ─► Flushed* ─► Finished
         └───────────────── Rejected, at any time before Queued ──────────────┘

Every Accepted is followed by exactly one Rejected or Finished, whatever happens to client, server or engine. What the
engine does comes as packed step records (`flow.record`), one on each Delivered: from them follow when a sequence was
received, let in, sent back and served. Listeners skip events they do not know: a new stage tells of itself with a
struct of its own.

Identity: `request` is the id of the flow.Request, unique per server; for one of several prompts it ends in "-<place>":
see `whole`. Sequence numbers are unique per server as well. A pipeline's events name its model, a replica's carry its
`source`; for the others the journal knows both by their request.

`t` is when it was over, `start` when it began: `time.monotonic()` seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from penstock.flow import Delta, FinishReason, Trace
from penstock.flow.identity import UNNAMED, Source

Emit = Callable[["Event"], None]


class Event(msgspec.Struct, frozen=True, gc=False):
    request: str
    t: float


class Accepted(Event, frozen=True, gc=False):
    """The first thing known of a request, when its headers had been read."""

    request_id: str  # the x-request-id
    kind: str  # of intake.views.KINDS
    trace: Trace | None = None
    tenant: str = ""


class Parsed(Event, frozen=True, gc=False):
    """The body has been read, and is what it should be."""

    stream: bool = False


class Validated(Event, frozen=True, gc=False):
    """Its fields make sense; `params` are the sampling parameters it asks for."""

    params: dict[str, Any]


class Rendered(Event, frozen=True, gc=False):
    start: float
    model: str = ""  # whose pipeline it goes through


class Tokenized(Event, frozen=True, gc=False):
    start: float
    tokens: list[int]
    model: str = ""


class Queued(Event, frozen=True, gc=False):
    """Handed to the engine's link, as sequences of (number, id, prompt, choice, prompt tokens)."""

    sequences: list[tuple[int, str, int, int, int]]
    source: Source = UNNAMED


class Requeued(Event, frozen=True, gc=False):
    """Its engine has died before anything came of it: `sequence` waits for the next one."""

    sequence: str
    source: Source = UNNAMED


class Delivered(Event, frozen=True, gc=False):
    """A frame of the engine's, received at `start`, has been made text; `request` is empty. `times` say when each of
    the `deltas` was done."""

    start: float
    record: bytes | None
    deltas: Sequence[Delta]
    times: Sequence[float]
    source: Source = UNNAMED


class Flushed(Event, frozen=True, gc=False):
    """Written to the socket."""

    start: float
    num_bytes: int


class FlushedTokens(Event, frozen=True):
    """Writes that did not wait, as (when, bytes): told together, since there is one for every token."""

    writes: Sequence[tuple[float, int]]


class Ended(msgspec.Struct, frozen=True, gc=False):
    """A sequence's end, as its client sees it."""

    number: int
    finish: FinishReason
    stop: str | int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    text: str | None  # if texts are kept


class Finished(Event, frozen=True, gc=False):
    """The client has its answer, an error or has gone."""

    sequences: list[Ended]
    code: str | None = None  # of the error that ended it
    message: str | None = None


class Rejected(Event, frozen=True, gc=False):
    """It was not let in."""

    status: int
    code: str
    message: str


def whole(request: str) -> str:
    """The id of the HTTP request that a flow.Request is a part of."""
    return request.partition("-")[0]
