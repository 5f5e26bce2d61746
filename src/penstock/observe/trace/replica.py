"""What the journal keeps of one replica: its last steps, its state at the newest one, and counts since the start."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields

from penstock.flow.identity import Source
from penstock.flow.record import DECODE, TOKENS_OF_DECODE, WAITS, Blocks, StepRecord, drafts_of
from penstock.observe.histogram import BATCH_SIZES, STEP_S, TOKEN_LATENCY_S, TOKENS, Histogram
from penstock.observe.trace.step_ring import StepRing

MAX_GAPS = 20_000  # distinct gaps of single steps, between two readings of the history


@dataclass(slots=True)
class Totals:
    """Counts since the server started."""

    prompt_tokens: int = 0
    hit_tokens: int = 0  # of those, found in the prefix cache
    output_tokens: int = 0
    preemptions: int = 0
    errors: int = 0  # requests that failed
    requests: int = 0  # that ended
    steps: int = 0
    rows: int = 0
    step_s: float = 0.0
    plan_s: float = 0.0  # of step_s: what the scheduler takes before the forward pass,
    settle_s: float = 0.0  # and behind it
    prefill_tokens: int = 0  # computed for prompts
    decode_tokens: int = 0  # positions of rows that decode: the newest token and its drafts
    drafted: int = 0
    accepted: int = 0
    text_s: float = 0.0  # of the frontend: from a frame to its text
    writes: int = 0  # to sockets
    written_bytes: int = 0

    def __add__(self, other: Totals) -> Totals:
        return Totals(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))


@dataclass(slots=True)
class Level:
    """Gauges as of the last step, or of the last time the engine was asked."""

    t: float = 0.0
    waiting: int = 0
    waits: tuple[int, ...] = (0,) * len(WAITS)  # of those, by reason
    blocked: int = 0
    evictions: int = 0
    blocks: list[Blocks] = field(default_factory=list)

    @property
    def kv_use(self) -> float:
        """Of the fullest cache group, the share of blocks that sequences hold."""
        shares = [group.held / max(1, group.held + group.resting + group.cached + group.free) for group in self.blocks]
        return round(max(shares, default=0.0), 4)


class ReplicaTrace:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.steps = StepRing()
        self._before_engine = 0  # steps of earlier engines, if the engine counts its records
        self.totals = Totals()
        self.level = Level()
        self.token_gap_s = Histogram(TOKEN_LATENCY_S)
        self.token_gaps: deque[tuple[float, int]] = deque(
            maxlen=MAX_GAPS
        )  # seconds and how often; the history empties it
        self.step_s = Histogram(STEP_S)
        self.step_tokens = Histogram(TOKENS)
        self.batch_size = Histogram(BATCH_SIZES)
        self.prompt_tokens = Histogram(TOKENS)  # of a request, as the next
        self.output_tokens = Histogram(TOKENS)

    def note_record(self, count: int) -> None:
        """A record is about to be added: the engine's `count`-th, if there are several frontends."""
        if count == 1:
            self._before_engine = self.steps.last

    def ring_number(self, count: int) -> int:
        """The number in the ring of the engine's `count`-th record."""
        return self._before_engine + count

    def count_gaps(self, gaps: dict[float, int]) -> None:
        """Seconds between two tokens of a sequence, and how often each occurred in a step."""
        for gap, count in gaps.items():
            self.token_gap_s.add(gap, count)
        self.token_gaps.extend(gaps.items())

    def count_step(self, step: StepRecord, settled: float) -> None:
        """Count a step that has been settled at `settled`."""
        totals, level = self.totals, self.level
        seconds, rows = step.settled_us * 1e-6, len(step.words)
        decode_words = [word for word in step.words if word & DECODE]
        tokens, decoded = step.tokens, sum(word & TOKENS_OF_DECODE for word in decode_words)
        totals.steps += 1
        totals.plan_s += step.planned_us * 1e-6
        totals.settle_s += max(step.settled_us - step.collected_us, 0) * 1e-6
        totals.prefill_tokens += tokens - decoded
        totals.decode_tokens += decoded
        totals.drafted += decoded - len(decode_words)
        if decoded > len(decode_words):
            totals.accepted += sum(drafts_of(word)[1] for word in decode_words)
        totals.rows += rows
        totals.step_s += seconds
        totals.preemptions += len(step.preemptions)
        level.t, level.waiting, level.waits, level.blocked = settled, step.waiting, step.waits, step.blocked
        level.evictions, level.blocks = step.evictions, step.blocks
        self.step_s.add(seconds)
        self.step_tokens.add(tokens)
        self.batch_size.add(rows)

    def count_writes(self, count: int, num_bytes: int) -> None:
        self.totals.writes += count
        self.totals.written_bytes += num_bytes
