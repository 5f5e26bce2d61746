"""What frontends and the control process tell each other: msgpack of these structs over a Unix socket."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec

from penstock.deployment.protocol import Price
from penstock.errors import PenstockError, RateLimited, by_code
from penstock.flow import Delta, FinishReason, Timings
from penstock.flow.identity import Source
from penstock.flow.messages import Wire
from penstock.gateway.keys.identity import Identity
from penstock.gateway.ledger.record import UsageRecord
from penstock.gateway.limits.reservation import Charge
from penstock.http.response_store import StoredResponse
from penstock.observe import events
from penstock.store.adapter_spec import AdapterSpec

# --- from a frontend


class Listening(Wire, frozen=True):
    """It answers requests from now on."""


class Drained(Wire, frozen=True):
    """After Drain: no request is open. It goes on to say so to clients until EndAll."""


class Reserve(Wire, frozen=True):
    """What a request may use at most. Answered by a Reservation, or the error of its limits."""

    call: int
    identity: Identity
    request: str
    charge: Charge
    model: str


class Release(Wire, frozen=True):
    """A request that was not dispatched after all. Answered when its reservation is given back."""

    call: int
    request: str


class Complete(Wire, frozen=True):
    """A request has ended. Answered when its usage is in the ledger and its reservation is settled."""

    call: int
    record: UsageRecord
    awaited: bool  # by a client
    request: str  # that has reserved; a line of a batch is recorded by another name


class Used(Wire, frozen=True):
    """A request has ended, of a server without a ledger."""

    record: UsageRecord


class FetchResponse(Wire, frozen=True):
    """Answered by a StoredResponse, or NotFound."""

    call: int
    store: str
    tenant: str
    name: str
    param: str


class StoreResponse(Wire, frozen=True):
    """Answered when it is stored."""

    call: int
    store: str
    tenant: str
    name: str
    response: StoredResponse


class SequenceEnded(Wire, frozen=True):
    """For metrics."""

    source: Source
    finish: FinishReason
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    timings: Timings | None


class EndEngine(Wire, frozen=True):
    """An engine gives no sign of life."""

    source: Source
    why: str


class PromptSent(Wire, frozen=True):
    """A replica got a prompt of these block keys. Passed on to the other frontends, which count them as cached."""

    source: Source
    keys: bytes  # of KEY_BYTES each


class DeliveredWire(Wire, frozen=True):
    """events.Delivered, with as much of its Deltas as the journal reads."""

    t: float
    start: float
    deltas: list[Delta]
    times: list[float]
    source: Source
    numbers: bytes
    tokens_done: float
    step: int


class FlushedWire(Wire, frozen=True):
    """events.FlushedTokens."""

    request: str
    t: float
    writes: bytes


PlainEvent = (
    events.Accepted
    | events.Parsed
    | events.Validated
    | events.ContextAssembled
    | events.Rendered
    | events.Tokenized
    | events.Queued
    | events.Routed
    | events.AttemptFailed
    | events.GatewayWork
    | events.SafetyHit
    | events.Requeued
    | events.Flushed
    | events.Charged
    | events.Finished
    | events.Rejected
)


class Happened(Wire, frozen=True):
    event: PlainEvent


class Counts(msgspec.Struct, array_like=True, frozen=True):
    """What a frontend has counted since its start, and its gauges."""

    open: list[tuple[str, int]] = []  # requests, by model
    tasks: int = 0
    decisions: list[tuple[str, int]] = []  # by deployment
    open_circuits: list[str] = []
    fallbacks: list[tuple[tuple[str, str, str], int]] = []
    estimated_usage: list[tuple[str, int]] = []
    safety_hits: list[tuple[tuple[str, str], int]] = []
    hook_failures: list[tuple[tuple[str, str], int]] = []
    transfers: list[tuple[tuple[str, str], float]] = []  # of KV blocks, by model: see TransferTotals
    transfer_failures: list[tuple[tuple[str, str], int]] = []  # by model and cause
    adapters: list[tuple[tuple[str, str], int]] = []  # open requests, by id and version


class Status(Wire, frozen=True):
    """Once a second, and in answer to a Fence or ServeAdapters: all messages that the frontend had before are in front
    of it."""

    fence: int
    counts: Counts


ToControl = (
    Listening
    | Drained
    | Reserve
    | Release
    | Complete
    | Used
    | FetchResponse
    | StoreResponse
    | SequenceEnded
    | EndEngine
    | PromptSent
    | DeliveredWire
    | FlushedWire
    | Happened
    | Status
)

# --- to a frontend


class ServedAdapter(msgspec.Struct, array_like=True, frozen=True):
    """A LoRA adapter that the control process has found and checked."""

    base: str
    name: str  # without the base's
    path: str
    weights: str
    spec: AdapterSpec  # without `low_ranks`: engines read the tensors
    price: Price | None
    aliases: tuple[str, ...]


class ServeAdapters(Wire, frozen=True):
    """Serve these and no others. Answered by a Status when that is so."""

    number: int
    adapters: list[ServedAdapter]


class StartFrontend(Wire, frozen=True):
    """The first message: all that it needs to serve."""

    settings: dict[str, Any]
    secret: bytes  # of the server: see `flow.prefix`
    number: int  # of the frontend, from 1
    numbers: tuple[int, int, int]  # part, parts and first, of `flow.identity.SequenceNumbers`
    engines: dict[str, list[str]]  # socket paths of replicas, by model
    control: str  # socket path of the control process's HTTP server
    variables: dict[str, str]  # of the environment, that the settings name
    adapters: list[ServedAdapter]


class Failed(Wire, frozen=True):
    """An error that a call is answered with."""

    code: str
    message: str
    param: str | None
    retry_after_s: float | None
    headers: dict[str, str]
    owner: str = ""
    limit: str = ""

    @classmethod
    def of(cls, error: PenstockError) -> Failed:
        said = (error.code, error.message, error.param, error.retry_after_s, error.headers)
        return cls(*said, error.owner, error.limit) if isinstance(error, RateLimited) else cls(*said)

    def error(self) -> PenstockError:
        error = by_code(self.code, self.message, self.param)
        error.retry_after_s, error.headers = self.retry_after_s, self.headers
        if isinstance(error, RateLimited):
            error.owner, error.limit = self.owner, self.limit
        return error


class Answer(Wire, frozen=True):
    call: int
    value: Any = None
    failed: Failed | None = None


class Fence(Wire, frozen=True):
    """Asks for a Status."""

    number: int
    refresh_keys: bool = False  # look for changed keys first


class Drain(Wire, frozen=True):
    """Accept no more requests, and end those that are open after so many seconds."""

    deadline_s: float


class EndAll(Wire, frozen=True):
    """End all requests and exit."""


FromControl = StartFrontend | Answer | Fence | PromptSent | ServeAdapters | Drain | EndAll

# --- events


def to_wire(event: events.Event) -> DeliveredWire | FlushedWire | Happened:
    match event:
        case events.Delivered():
            deltas = [
                Delta(id=delta.id, tokens=delta.tokens, finish=delta.finish, timings=delta.timings)
                for delta in event.deltas
            ]
            numbers = event.numbers.tobytes() if event.numbers else b""
            rest = (list(event.times), event.source, numbers, event.tokens_done, event.step)
            return DeliveredWire(event.t, event.start, deltas, *rest)
        case events.FlushedTokens():
            return FlushedWire(event.request, event.t, event.writes.tobytes())
        case _:
            return Happened(event)  # type: ignore[arg-type]  # all others are plain


def from_wire(message: DeliveredWire | FlushedWire | Happened) -> events.Event:
    match message:
        case DeliveredWire():
            numbers = array("I", message.numbers)
            rest = (message.source, numbers, message.tokens_done, message.step)
            return events.Delivered("", message.t, message.start, None, message.deltas, message.times, *rest)
        case FlushedWire():
            return events.FlushedTokens(message.request, message.t, array("d", message.writes))
        case Happened():
            return message.event
