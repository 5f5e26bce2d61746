"""What crosses the border between the frontend and an engine. Times are `time.monotonic()` seconds."""

from __future__ import annotations

from array import array
from enum import StrEnum
from typing import Any, Literal

import msgspec

from penstock.flow.params import SamplingParams

Task = Literal["generate", "embed"]
Pooling = Literal["mean", "last"]  # of the hidden states of all tokens, or that of the last one


class FinishReason(StrEnum):
    """Why a sequence ended. `str` values: `choice.finish == "length"`."""

    END = "end"  # the model's own end-of-sequence token; of an embedding: it is complete
    STOP_TOKEN = "stop_token"  # noqa: S105
    STOP_STRING = "stop_string"
    LENGTH = "length"  # max_tokens reached
    CONTEXT = "context"  # the context is full
    COMPLETE = "complete"  # the constraint is fulfilled and lets nothing follow; unlike END, no token says so
    DEAD_END = "dead_end"  # the constraint is not fulfilled, and no token can follow
    TIMEOUT = "timeout"  # params.timeout_s has passed
    CANCELLED = "cancelled"
    ERROR = "error"


class Wire(msgspec.Struct, tag=True, array_like=True, frozen=True):
    """Base of everything that crosses: a tagged array on the wire."""


# --- to the engine


class Start(Wire, frozen=True):
    """First message to an engine process: the resolved settings, as `settings.to_wire` writes them, and the secret."""

    settings: dict[str, Any]
    secret: bytes  # of the server: see `flow.prefix`


class Submit(Wire, frozen=True):
    """One sequence to run: the frontend sends n of them for n choices. Answered by exactly one terminal Delta.

    The sender has checked it: token ids are in the vocabulary, `tokens` and `max_output` fit the context. One to embed
    produces nothing: it ends when all of `tokens` have been computed, and may fill the context with them.
    """

    id: str
    tokens: list[int]
    params: SamplingParams
    seed: int  # params.seed, or the one drawn for the request
    max_output: int  # tokens it may produce: params.max_tokens (1 if that is 0), or what fits; 0 to embed
    choice: int = 0
    end_tokens: tuple[int, ...] = ()  # end-of-sequence ids that count for this request
    priority: int = 0
    salt: str = ""
    tenant: str = ""  # whose it is: nothing in the cache is shared between tenants, nor shown to another
    arrival: float = 0.0
    deadline: float | None = None
    task: Task = "generate"
    pooling: Pooling = "mean"  # of an embedding
    number: int = 0  # what step records call it; 0: nobody asked
    forced: int = 0  # of `tokens`, the last so many count as output for penalties
    inspect: int = 0  # how many of the likeliest tokens to show, with the first output, through every stage of sampling


class Cancel(Wire, frozen=True):
    """End a sequence. Its terminal Delta carries `finish`.

    `at_output` is how many output tokens the client was given: what the engine produced beyond is surplus, which is
    neither counted nor left in the prefix cache.
    """

    id: str
    finish: FinishReason = FinishReason.CANCELLED
    at_output: int | None = None


class Query(Wire, frozen=True):
    """Ask the engine about itself. `kind` is one of those `engine.loop` knows; answered by one Reply."""

    id: int
    kind: str
    arguments: dict[str, Any] = {}


class Stop(Wire, frozen=True):
    """Leave the loop. Nothing is said of the sequences that are open: whoever sends this has given up on them."""


# --- from the engine


class Ready(Wire, frozen=True):
    """The engine is up. `facts` are for people and for the frontend: dtype, device, cache capacity, load times."""

    facts: dict[str, Any]


class Failure(Wire, frozen=True):
    """The engine could not start; the fields rebuild the exception on the other side."""

    code: str
    message: str
    param: str | None = None


class TokenLogprobs(msgspec.Struct, array_like=True, frozen=True):
    """Log-probabilities at one position, of the model's own distribution (before penalties and temperature)."""

    token: int
    logprob: float
    rank: int  # 1: the likeliest
    top: list[tuple[int, float]]  # the k likeliest, best first


class Stage(msgspec.Struct, array_like=True, frozen=True):
    """A row of logits behind one stage of sampling, as a distribution."""

    name: str  # "model", then those of `penstock.sample` in their order
    on: bool  # whether the request asks for it
    kept: int  # tokens that can still be drawn
    entropy_bits: float
    probs: list[float]  # of the inspection's tokens


class Inspection(msgspec.Struct, array_like=True, frozen=True):
    """How one token came to be drawn."""

    tokens: list[int]  # those shown, likeliest first as the model has it
    logits: list[float]  # the model's, of those
    stages: list[Stage]
    drawn: int


class Timings(msgspec.Struct, array_like=True, frozen=True):
    """When things happened to a sequence, and from that how many seconds each part took."""

    arrival: float
    admitted: float | None  # first scheduled; None if it never was
    first_token: float | None
    finished: float
    preemptions: int = 0

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
    """News of one sequence. The last one of every sequence, and only that, has `finish`."""

    id: str
    tokens: list[int] = []
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs] | None = None  # of prompt tokens 1.., sent once with the first output
    cached_tokens: int = 0
    finish: FinishReason | None = None
    error: str | None = None
    code: str | None = None  # of the error class, see penstock.errors
    timings: Timings | None = None  # with `finish`
    embedding: bytes | None = None  # with END, if that was the task: little-endian float32, of unit length
    inspection: Inspection | None = None  # of the first output, on request
    number: int = 0  # Submit.number, if one further token is all there is: `Frame.packed` can take it


class Frame(Wire, frozen=True):
    """Everything one step has to say. `record` is a packed `flow.record`, where they are wanted.

    Most sequences of a step have one further token and nothing else. On the wire these are pairs in `tokens`, which
    cost a tenth of a Delta to read.
    """

    deltas: list[Delta]
    record: bytes | None = None
    tokens: bytes = b""  # array("I"): sequence number, token id, …

    def packed(self) -> Frame:
        """For the wire: Deltas of a single token become pairs."""
        others: list[Delta] = []
        pairs: list[int] = []
        for delta in self.deltas:
            if delta.number and delta.finish is None:
                pairs += (delta.number, delta.tokens[0])
            else:
                others.append(delta)
        return Frame(others, self.record, array("I", pairs).tobytes())

    def pairs(self) -> tuple[array[int], array[int]]:
        """Sequence numbers and token ids of `tokens`."""
        words = array("I", self.tokens)
        return words[::2], words[1::2]


class Reply(Wire, frozen=True):
    """The answer to a Query: a value, or what went wrong."""

    id: int  # of the Query
    value: Any = None
    error: str | None = None


ToEngine = Start | Submit | Cancel | Query | Stop
FromEngine = Ready | Failure | Frame | Reply
