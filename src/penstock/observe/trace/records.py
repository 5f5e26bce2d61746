"""The records of a request and of its sequences. Times are `time.monotonic()` seconds."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

from penstock.flow import FinishReason, Trace
from penstock.flow.context import ContextTrace
from penstock.flow.identity import UNNAMED, Source
from penstock.flow.record import STEP, WAITS, Finding, micros
from penstock.flow.routing import Decision, FailedAttempt
from penstock.observe.events import SafetyHit

MAX_WRITES = 2048  # of one request that have entries of their own; later ones are added to the last entry
MAX_PLAIN_S = 4000.0  # as microseconds it fits 32 bits
NOT_FOUND = Finding()
LAB = "lab"  # the kind of requests of the sampling lab: no objective counts them, as none counts lines of batches
PRIORITY = "priority"  # the wait reason of a sequence that later ones overtook


class Moment:
    """A frame of the engine's: one object for all sequences that it brought something for."""

    __slots__ = ("received", "settled", "step")

    def __init__(self, settled: float, received: float, step: int) -> None:
        self.settled = settled  # by the engine
        self.received = received  # by the frontend
        self.step = step


NEVER = Moment(0.0, 0.0, 0)


@dataclass(slots=True, eq=False)
class SequenceTrace:
    number: int
    id: str
    prompt: int
    choice: int
    prompt_tokens: int
    queued: float
    received: float | None = None  # by the engine
    admitted: float | None = None
    first_token: float | None = None  # settled by the engine
    finished: float | None = None
    latest: Moment = NEVER  # of its last token
    tokenless: Moment | None = None  # of its end, if no token came with that
    text_done: float | None = None  # when the frontend had detokenized the latest
    first_text: float | None = None
    first_step: int = 0
    cached: int = 0
    output_tokens: int = 0
    drafted: int = 0  # tokens, once it has ended
    accepted: int = 0  # of those, right ones
    waits_us: tuple[int, ...] = (0,) * len(WAITS)
    ahead: int = 0
    overtaken: int = 0
    finding: Finding = NOT_FOUND
    preemptions: list[tuple[float, int, int]] = field(default_factory=list)  # when, in which step, why
    finish: FinishReason | None = None
    stop: str | int | None = None
    waiting: bool = True

    @property
    def last_token(self) -> float | None:
        """Settled by the engine."""
        return None if self.first_token is None else self.latest.settled

    @property
    def heard(self) -> float:
        """When the frontend last received something of it."""
        return (self.tokenless or self.latest).received

    @property
    def last_step(self) -> int:
        return (self.tokenless or self.latest).step

    @property
    def waited_for(self) -> str | None:
        """What it waited for longest before it was first admitted; None until then."""
        if self.admitted is None:
            return None
        if self.overtaken:
            return PRIORITY
        longest = max((us, -reason) for reason, us in enumerate(self.waits_us) if reason != STEP)
        return WAITS[-longest[1]] if longest[0] else WAITS[STEP]

    @property
    def tokens_per_s(self) -> float | None:
        if self.first_token is None or self.last_token is None or self.output_tokens < 2:
            return None
        spent = self.last_token - self.first_token
        return (self.output_tokens - 1) / spent if spent > 0 else None


@dataclass(slots=True, eq=False)
class RequestTrace:
    number: int
    id: str
    request_id: str
    kind: str
    accepted: float
    trace: Trace | None = None
    tenant: str = ""
    batch: str | None = None  # the batch whose line it is
    source: Source = UNNAMED  # the replica it was queued at; before that, the model as far as it is known
    adapter: str = ""  # of its sequences, without the model's name
    asked: str | None = None  # the model that the client named, if it named one
    parsed: float | None = None
    validated: float | None = None
    stream: bool = False
    params: dict[str, Any] = field(default_factory=dict)
    safety: list[SafetyHit] = field(default_factory=list)
    route: list[Decision | FailedAttempt] = field(default_factory=list)  # in the order in which they happened
    context: ContextTrace | None = None  # how the prompt was assembled, in the last attempt
    auth_s: float = 0.0
    work: list[tuple[str, float, float]] = field(default_factory=list)  # of the gateway: stage, start, end
    rendered: list[tuple[float, float]] = field(default_factory=list)
    tokenized: list[tuple[float, float]] = field(default_factory=list)
    queued: float | None = None
    answered: bool = False  # it has its first token
    sequences: list[SequenceTrace] = field(default_factory=list)
    writes: array[int] = field(default_factory=lambda: array("I"))  # start and length in µs since accepted, bytes, …
    num_writes: int = 0
    write_us: int = 0
    written: int = 0  # bytes
    end: float | None = None
    finish: str | None = None
    code: str | None = None
    message: str | None = None
    status: int | None = None
    microusd: int | None = None  # what it costs; None: its model has no price
    prompts: list[array[int]] | None = None  # token ids, with keep_texts, as the next two
    opening: str | None = None  # of the prompt
    answers: list[str] | None = None

    def add_write(self, start: float, end: float, num_bytes: int) -> None:
        spent = micros(end - start) if end != start else 0
        self.num_writes += 1
        self.write_us += spent
        self.written += num_bytes
        if len(self.writes) < 3 * MAX_WRITES:
            self.writes.extend((micros(start - self.accepted), spent, num_bytes))
        else:
            self.writes[-2] = micros(end - self.accepted) - self.writes[-3]
            self.writes[-1] = min(self.writes[-1] + num_bytes, 2**32 - 1)

    def add_writes(self, times: array[float], sizes: array[float]) -> None:
        """Many writes that did not wait: when, and how many bytes."""
        accepted, count = self.accepted, len(times)
        if len(self.writes) + 3 * count > 3 * MAX_WRITES or times[-1] - accepted > MAX_PLAIN_S:
            for t, num_bytes in zip(times, sizes, strict=True):
                self.add_write(t, t, int(num_bytes))
            return
        words = array("I", bytes(12 * count))
        words[::3] = array("I", [int((t - accepted) * 1e6 + 0.5) for t in times])
        words[2::3] = array("I", map(int, sizes))
        self.writes += words
        self.num_writes += count
        self.written += int(sum(sizes))

    @property
    def state(self) -> str:
        if self.end is not None:
            return "done"
        if self.queued is None:
            return "accepted"
        return "queued" if all(sequence.waiting for sequence in self.sequences) else "running"

    @property
    def has_model(self) -> bool:
        """Whether a model's pipeline has it, or has had it."""
        return bool(self.rendered or self.tokenized) or self.queued is not None

    @property
    def model(self) -> str | None:
        """The model whose pipeline has it; before that, and if none ever had it, what the client named."""
        if not self.has_model:
            return self.asked
        return f"{self.source.model}@{self.adapter}" if self.adapter else self.source.model

    @property
    def replica(self) -> int | None:
        """None: no replica has had it."""
        return None if self.queued is None else self.source.replica

    @property
    def prompt_tokens(self) -> int:
        return sum(sequence.prompt_tokens for sequence in self.sequences if sequence.choice == 0)

    @property
    def output_tokens(self) -> int:
        return sum(sequence.output_tokens for sequence in self.sequences)

    @property
    def cached_tokens(self) -> int:
        return sum(sequence.cached for sequence in self.sequences if sequence.choice == 0)

    @property
    def first_token_s(self) -> float | None:
        """TTFT: from its acceptance to its first text."""
        times = [sequence.first_text for sequence in self.sequences if sequence.first_text is not None]
        return min(times) - self.accepted if times else None

    @property
    def tokens_per_s(self) -> float | None:
        rates = [rate for sequence in self.sequences if (rate := sequence.tokens_per_s) is not None]
        return sum(rates) / len(rates) if rates else None

    @property
    def failed(self) -> bool:
        """Whether the server failed it. Invalid requests and disconnected clients do not count."""
        return self.finish == FinishReason.ERROR.value or (self.status or 0) >= 500
