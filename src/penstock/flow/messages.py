"""The messages between the frontend and an engine. Times are seconds of the reader's `time.monotonic()`: processes on a
host share it, and between hosts instants travel as distances from the moment of sending (`cluster.wire_times`)."""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import Any, Literal

import msgspec

from penstock.flow.adapter import Adapter
from penstock.flow.params import SamplingParams
from penstock.flow.transfer import TransferSetup

Task = Literal["generate", "embed"]
STANDARD_TIER = 1  # of requests that name no tier
Pooling = Literal["mean", "last"]  # the mean of all tokens' hidden states, or the last token's


class FinishReason(StrEnum):
    """Why a sequence ended. `str` values: `choice.finish == "length"`."""

    END = "end"  # an end-of-sequence token of the model; of an embedding: it is complete
    STOP_TOKEN = "stop_token"  # noqa: S105
    STOP_STRING = "stop_string"
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the context is full
    COMPLETE = "complete"  # the constraint is fulfilled and allows no further token
    DEAD_END = "dead_end"  # the constraint is not fulfilled, and allows no token
    CONTENT_FILTER = "content_filter"  # a safety rule matched
    TIMEOUT = "timeout"  # params.timeout_s has passed
    CANCELLED = "cancelled"
    ERROR = "error"


class Wire(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Base of all messages: a tagged array on the wire."""


# --- to the engine


class Start(Wire, frozen=True):
    """The first message to an engine process: the settings, from `settings.to_wire`, and the server's secret."""

    settings: dict[str, Any]
    secret: bytes  # see `flow.prefix`
    listen: str | None = None  # path of the Unix socket for further frontends; None: there are none
    transfer: TransferSetup | None = None  # None: it exchanges no KV blocks with other engines


class Submit(Wire, frozen=True):
    """One sequence to run: the frontend sends n of them for n choices. Each gets exactly one terminal Delta.

    The sender has validated it: token ids are in the vocabulary, `tokens` and `max_output` fit the context. An
    embedding has no output: it ends when all of `tokens` are computed, and they may fill the context.
    """

    id: str
    tokens: list[int]
    params: SamplingParams
    seed: int  # params.seed, or a random one
    max_output: int  # limit of output tokens: params.max_tokens (1 if that is 0), or what fits; 0 for an embedding
    choice: int = 0
    end_tokens: tuple[int, ...] = ()  # end-of-sequence ids that end it; none with ignore_eos
    priority: int = 0
    salt: str = ""
    tenant: str = ""  # its owner: the cache shares nothing between tenants, and shows it to no other
    arrival: float = 0.0
    deadline_s: float | None = None  # from its arrival: it ends then, wherever it is
    task: Task = "generate"
    pooling: Pooling = "mean"  # for embeddings
    number: int = 0  # names it in step records; unique per server (`flow.identity`)
    forced: int = 0  # the last so many of `tokens` count as output for penalties
    background: bool = False  # computed with what foreground sequences leave free
    inspect: int = 0  # with the first output, show this many top tokens after every stage of sampling
    tier: int = STANDARD_TIER  # of its tenant's service: a smaller one goes first
    weight: float = 1.0  # of its tenant among those of the same tier, when they share the engine
    include_drafts: bool = False  # its Deltas have `drafts`
    adapter: Adapter | None = None  # None: the base model


class Cancel(Wire, frozen=True):
    """End a sequence. Its terminal Delta has this `finish`.

    `at_output` is how many output tokens the client has got: later ones are surplus, which are neither counted nor kept
    in the prefix cache.
    """

    id: str
    finish: FinishReason = FinishReason.CANCELLED
    at_output: int | None = None


class Query(Wire, frozen=True):
    """A question about the engine. `kind` is one of `EngineLoop.queries`; answered by one Reply."""

    id: int
    kind: str
    arguments: dict[str, Any] = {}


class Stop(Wire, frozen=True):
    """End the engine process. Open sequences get no terminal Delta: the sender has given them up."""


# --- from the engine


class Ready(Wire, frozen=True):
    """The engine is up. `facts` for users and the frontend: dtype, device, context, cache capacity, load times."""

    facts: dict[str, Any]


class Failure(Wire, frozen=True):
    """The engine could not start; the frontend raises the error that these fields describe."""

    code: str
    message: str
    param: str | None = None


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities at one position, of the model's distribution before penalties and temperature."""

    token: int
    logprob: float
    rank: int  # 1: the most likely token
    top: list[tuple[int, float]]  # the k most likely, best first


class Stage(msgspec.Struct, array_like=True, frozen=True):
    """The distribution after one stage of sampling."""

    name: str  # "model", then those of `penstock.sample` in their order
    on: bool  # whether the request uses it
    kept: int  # tokens with a probability above 0
    entropy_bits: float
    probs: list[float]  # of `Inspection.tokens`


class Inspection(msgspec.Struct, array_like=True, frozen=True):
    """How one token was sampled, stage by stage."""

    tokens: list[int]  # those shown, most likely first by the model's logits
    logits: list[float]  # of the model, for these tokens
    stages: list[Stage]
    drawn: int


class Timings(msgspec.Struct, array_like=True, frozen=True):
    """Instants of a sequence, and the durations between them."""

    arrival: float
    admitted: float | None  # first admitted; None: never
    first_token: float | None
    finished: float
    preemptions: int = 0
    drafted: int = 0  # tokens
    accepted: int = 0  # of those, right ones

    @property
    def queue_s(self) -> float:
        return (self.admitted or self.finished) - self.arrival

    @property
    def prefill_s(self) -> float | None:
        return None if self.first_token is None or self.admitted is None else self.first_token - self.admitted

    @property
    def first_token_s(self) -> float | None:
        return None if self.first_token is None else self.first_token - self.arrival

    @property
    def decode_s(self) -> float | None:
        return None if self.first_token is None else self.finished - self.first_token


class Delta(msgspec.Struct, array_like=True, kw_only=True):
    """What a step adds to one sequence. The last Delta of every sequence, and only that one, has `finish`."""

    id: str
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None  # of prompt tokens 1.., sent once with the first output
    cached_tokens: int = 0
    finish: FinishReason | None = None
    error: str | None = None
    code: str | None = None  # of the error class, see penstock.errors
    timings: Timings | None = None  # with `finish`
    embedding: bytes | None = None  # with END, for embeddings: little-endian float32, of unit length
    inspection: Inspection | None = None  # of the first output, on request
    drafts: list[int] | None = None  # on request: what was drafted in the step, right or wrong
    number: int = 0  # Submit.number, if it has one token and nothing else, so that `Frame.packed` can pack it


class Frame(Wire, frozen=True):
    """All Deltas of one step, and its packed `flow.record` if steps are recorded.

    Most Deltas have one token and nothing else. On the wire these are pairs in `tokens`, which cost a tenth of a Delta
    to decode.
    """

    deltas: list[Delta]
    record: bytes | None = None
    tokens: bytes = b""  # array("I"): sequence number, token id, …
    step: int = 0  # of several frontends' frames: which of the engine's records belongs to it; 0: none

    def packed(self) -> Frame:
        """For the wire: Deltas with one token and nothing else become pairs."""
        others: list[Delta] = []
        pairs: list[int] = []
        for delta in self.deltas:
            if delta.number and delta.finish is None:
                pairs += (delta.number, delta.tokens[0])
            else:
                others.append(delta)
        return Frame(others, self.record, array("I", pairs).tobytes(), self.step)

    def pairs(self) -> tuple[array[int], array[int]]:
        """Sequence numbers and token ids of `tokens`."""
        words = array("I", self.tokens)
        return words[::2], words[1::2]


class StartPhase(Wire, frozen=True):
    """What an engine is doing before it is Ready."""

    phase: str


class Reply(Wire, frozen=True):
    """The answer to a Query: a value, or an error message."""

    id: int  # of the Query
    value: Any = None
    error: str | None = None


ToEngine = Start | Submit | Cancel | Query | Stop
FromEngine = StartPhase | Ready | Failure | Frame | Reply
