"""The events of a request's way through the server. A stage calls `emit` with one of them; `composition` chooses the
listener, which is the journal.

    Accepted ─► Parsed ─► Validated ─► (Rendered ─► Tokenized)* ─► Queued ─► Delivered* ─► Flushed* ─► Finished
         └───────────────── Rejected, at any time before Queued ──────────────┘

Every Accepted is followed by exactly one Rejected or Finished, also if client, server or engine fails. Each
Delivered carries a packed step record (`flow.record`), which says when a sequence was received, admitted, preempted and
computed. Listeners skip events they do not know, so a new stage can add a struct of its own.

Identity: `request` is the id of the flow.Request, unique per server; for one of several prompts it ends in "-<place>":
see `http_request_id`. Sequence numbers are unique per server as well. A pipeline's events name its model, a replica's
carry its `source`; for the others the journal knows both by their request.

`t` is when it ended, `start` when it began: `time.monotonic()` seconds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import msgspec

from penstock.flow import Delta, FinishReason, Trace
from penstock.flow.context import ContextTrace
from penstock.flow.identity import UNNAMED, Source
from penstock.flow.routing import Decision

Emit = Callable[["Event"], None]


class Listener(Protocol):
    """What events are told to: the journal or, in a further frontend process, the link to the one that has it."""

    def record(self, event: Event) -> None: ...


class Event(msgspec.Struct, frozen=True, gc=False, tag=True, array_like=True):
    """Tagged: a frontend process sends its events to the control process, which has the journal."""

    request: str
    t: float


class Accepted(Event, frozen=True, gc=False):
    """The headers of a request have been read."""

    request_id: str  # the x-request-id
    kind: str  # chat, completion, response, message, …
    trace: Trace | None = None
    tenant: str = ""
    batch: str | None = None  # the batch whose line it is
    auth_s: float = 0.0  # how long its key took to check, before that


class Parsed(Event, frozen=True, gc=False):
    """The body has been read and parsed."""

    stream: bool = False
    model: str | None = None  # as the client named it: there may be no such model


class Validated(Event, frozen=True, gc=False):
    """Its fields are valid; `params` are the sampling parameters that differ from the defaults."""

    params: dict[str, Any]


class ContextAssembled(Event, frozen=True):
    """The prompt was put together under its token budget."""

    start: float
    trace: ContextTrace


class Rendered(Event, frozen=True, gc=False):
    start: float
    model: str = ""  # whose pipeline it goes through


class Tokenized(Event, frozen=True, gc=False):
    start: float
    tokens: list[int]
    model: str = ""
    opening: str = ""  # how the prompt, or its last message of a user, begins; kept with keep_texts


class Queued(Event, frozen=True, gc=False):
    """Submitted to a replica, as sequences of (number, id, prompt, choice, prompt tokens)."""

    sequences: list[tuple[int, str, int, int, int]]
    source: Source = UNNAMED
    adapter: str = ""  # of all of them


class Routed(Event, frozen=True):
    """A deployment was chosen: each of `decisions` says by which policy, and why not another."""

    decisions: list[Decision]


class AttemptFailed(Event, frozen=True):
    """A deployment gave no output: the request goes to another, if there is one."""

    deployment: str
    code: str
    message: str


class GatewayWork(Event, frozen=True, gc=False):
    """A stage of the gateway is done: `limits`, `route` or `ledger`; or one of prefill and decode pools:
    `prefill_replica` or `kv_transfer`."""

    start: float
    stage: str


class SafetyHit(Event, frozen=True, gc=False):
    """A safety rule matched."""

    rule: str
    where: str  # input or output
    part: str  # the request's field, or the part of the answer: text, reasoning, arguments, answer
    text: str | None  # what matched, or what a hook said; with keep_texts


class Requeued(Event, frozen=True, gc=False):
    """The engine died before it answered: `sequence` is submitted again to the next one."""

    sequence: str
    source: Source = UNNAMED


class Scaled(Event, frozen=True, gc=False):
    """The number of a model's replicas changes; `request` is empty."""

    model: str
    before: int
    after: int
    reason: str


class Delivered(Event, frozen=True, gc=False):
    """A frame of the engine, received at `start`, has been detokenized; `request` is empty. `times` are when each of
    the `deltas` was done. Sequences that got one further token and nothing else are in `numbers` instead."""

    start: float
    record: bytes | None
    deltas: Sequence[Delta]
    times: Sequence[float]
    source: Source = UNNAMED
    numbers: array[int] | tuple[()] = ()  # of sequences, "I"
    tokens_done: float = 0.0  # when their tokens were text
    step: int = 0  # with several frontends: which of the engine's records it belongs to; 0: none, or its own


class Flushed(Event, frozen=True, gc=False):
    """Written to the socket."""

    start: float
    num_bytes: int


class FlushedTokens(Event, frozen=True):
    """Writes that did not wait: one event for many, since there is a write per token."""

    writes: array[float]  # "d": when, bytes, …


class Charged(Event, frozen=True, gc=False):
    """What it costs, in micro-dollars. Before Finished, or soon after that if the client has disconnected."""

    microusd: int


class Ended(msgspec.Struct, frozen=True, gc=False):
    """The end of a sequence as its client sees it."""

    number: int
    finish: FinishReason
    stop: str | int | None
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    text: str | None  # with keep_texts


class Finished(Event, frozen=True, gc=False):
    """The client has its answer or an error, or has disconnected."""

    sequences: list[Ended]
    code: str | None = None  # of the error, if there was one
    message: str | None = None


class Rejected(Event, frozen=True, gc=False):
    """Refused before it was queued."""

    status: int
    code: str
    message: str


def http_request_id(request: str) -> str:
    """The id of the HTTP request that a flow.Request, one per prompt, belongs to."""
    return request.partition("-")[0]
