"""The timeline of one request, twice: as stages that follow each other and add up to its latency, and as spans that may
overlap, one per step, detokenized piece and write."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from penstock.flow.record import DECODE, tokens_of
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.records import RequestTrace, SequenceTrace

MICROSECOND = 1e-6  # writes are rounded to it
MAX_SPANS = 1000
POOL_STAGES = ("prefill_replica", "kv_transfer")  # before it is handed to its decode replica's engine
MAX_PIECES = 32  # renderings and tokenizations that are shown one by one


class Stage(NamedTuple):
    name: str
    start: float
    end: float


class Span(NamedTuple):
    stage: str
    number: int | None  # of the sequence
    start: float
    end: float
    step: int | None = None
    tokens: int | None = None
    joined: int = 1  # spans merged into this one


def stages(request: RequestTrace, now: float) -> list[Stage]:
    """Its stages without a gap, from its acceptance to its end or to `now`, along the sequence that ended last."""
    end = request.end if request.end is not None else now
    pieces: list[Stage] = []
    at = request.accepted
    for name, until in _marks(request):
        last = end if until is None else min(max(until, at), end)
        if last > at or until is None:
            pieces.append(Stage(name, at, last))
        at = last
        if until is None:
            return pieces
    return pieces


def _marks(request: RequestTrace) -> Iterator[tuple[str, float | None]]:
    """(stage, when it ended); None: it is the last one."""
    yield "intake", request.parsed
    yield "validate", request.validated
    yield from _preparation(request)
    if request.queued is None:
        yield "wait", None  # for the gateway, or, of one that is refused, until its error has been answered
        return
    sequence = max(request.sequences, key=_end_time, default=None)
    if sequence is None:
        yield "submit", None
        return
    yield "submit", request.queued
    for name, _, end in request.work:
        if name in POOL_STAGES:
            yield name, end
    yield "queue", sequence.admitted
    if sequence.first_token is None and sequence.finished is None:
        yield "prefill", None
    yield "prefill", sequence.first_token or sequence.finished
    yield "decode", sequence.finished
    if request.end is None:
        yield "deliver", None
    yield from _delivery(request, sequence)


def _end_time(sequence: SequenceTrace) -> float:
    """Infinite for one that is still open."""
    return float("inf") if sequence.finished is None else sequence.finished


def _preparation(request: RequestTrace) -> Iterator[tuple[str, float]]:
    spans = sorted(
        [(start, end, "template") for start, end in request.rendered]
        + [(start, end, "tokenize") for start, end in request.tokenized]
    )
    if len(spans) > MAX_PIECES:
        yield "tokenize", spans[-1][1]
        return
    for start, end, name in spans:
        yield "wait", start
        yield name, end


def _delivery(request: RequestTrace, sequence: SequenceTrace) -> Iterator[tuple[str, float | None]]:
    """From the last token's step to the end: IPC, detokenize, write."""
    done = sequence.text_done
    if done is not None and sequence.finished is not None and done >= sequence.finished:
        yield "deliver", sequence.heard
        yield "detokenize", done
    writes = request.writes
    for index in range(max(0, len(writes) - 3 * MAX_PIECES), len(writes), 3):
        start = request.accepted + writes[index] * 1e-6
        if done is None or start >= done - MICROSECOND:
            yield "wait", start
            yield "write", start + writes[index + 1] * 1e-6
    yield "wait", None


def spans(request: RequestTrace, journal: Journal) -> list[Span]:
    found: list[Span] = []
    marks = [("intake", request.accepted, request.parsed), ("validate", request.parsed, request.validated)]
    found += [Span(name, None, start, end) for name, start, end in marks if start is not None and end is not None]
    found += [Span(stage, None, start, end) for stage, start, end in request.work]
    if request.tokenized and request.queued is not None:
        found.append(Span("submit", None, request.tokenized[-1][1], request.queued))
    found += [Span("template", None, start, end) for start, end in request.rendered]
    found += [Span("tokenize", None, start, end) for start, end in request.tokenized]
    for sequence in request.sequences:
        if sequence.admitted is not None:
            found.append(Span("queue", sequence.number, sequence.queued, sequence.admitted))
    found += _step_spans(request, journal)
    accepted, writes = request.accepted, request.writes
    for index in range(0, len(writes), 3):
        start = accepted + writes[index] * 1e-6
        found.append(Span("write", None, start, start + writes[index + 1] * 1e-6))
    return found


def _step_spans(request: RequestTrace, journal: Journal) -> Iterator[Span]:
    mine = {sequence.number for sequence in request.sequences if sequence.first_step}
    if not mine:
        return
    begin = min(sequence.first_step for sequence in request.sequences if sequence.first_step)
    end = max(sequence.last_step for sequence in request.sequences)
    ring = journal.replica(request.source).steps
    for step, received, texts in ring.between_with_text_times(begin, end):
        settled = step.start + step.settled_us * 1e-6
        for number, word in zip(step.numbers, step.words, strict=True):
            if number in mine:
                stage = "decode" if word & DECODE else "prefill"
                yield Span(stage, number, step.start, settled, step.number, tokens_of(word))
        before = 0
        for number, text_us in texts.items():
            if number in mine:
                yield Span("ipc", number, settled, received, step.number)
                yield Span("detokenize", number, received + before * 1e-6, received + text_us * 1e-6, step.number)
            before = text_us


def downsample(found: list[Span]) -> list[Span]:
    """At most about MAX_SPANS: neighbours of one stage and sequence are merged evenly."""
    if len(found) <= MAX_SPANS:
        return sorted(found, key=lambda span: span.start)
    share = -(-len(found) // MAX_SPANS) * 2
    lines: dict[tuple[str, int | None], list[Span]] = {}
    for span in found:
        lines.setdefault((span.stage, span.number), []).append(span)
    joined: list[Span] = []
    for line in lines.values():
        line.sort(key=lambda span: span.start)
        size = 1 if len(line) <= 8 else share
        joined += [_join(line[place : place + size]) for place in range(0, len(line), size)]
    return sorted(joined, key=lambda span: span.start)


def _join(group: list[Span]) -> Span:
    if len(group) == 1:
        return group[0]
    tokens = [span.tokens for span in group if span.tokens is not None]
    return group[0]._replace(
        end=max(span.end for span in group), tokens=sum(tokens) if tokens else None, joined=len(group)
    )


def totals(request: RequestTrace, found: list[Span]) -> dict[str, int]:
    def spent(stage: str) -> int:
        return round(sum(span.end - span.start for span in found if span.stage == stage) * 1e6)

    def count(stage: str) -> int:
        return sum(span.joined for span in found if span.stage == stage)

    return {
        "detokenize_us": spent("detokenize"),
        "ipc_us": spent("ipc"),
        "prefill_us": spent("prefill"),
        "decode_us": spent("decode"),
        "prefill_steps": count("prefill"),
        "decode_steps": count("decode"),
        "write_us": request.write_us,
        "write_bytes": request.written,
        "writes": request.num_writes,
    }


def gaps_us(request: RequestTrace, found: list[Span]) -> dict[int, dict[str, int]]:
    """Inter-token latencies by sequence number, of the steps that the ring still has."""
    last = {sequence.number: sequence.first_token for sequence in request.sequences}
    gaps: dict[int, list[float]] = {}
    for span in found:
        if span.stage == "decode" and span.number is not None and (before := last[span.number]) is not None:
            gaps.setdefault(span.number, []).append(span.end - before)
            last[span.number] = span.end
    return {number: _spread(sorted(times)) for number, times in gaps.items()}


def _spread(times: list[float]) -> dict[str, int]:
    places = {"p50": len(times) // 2, "p95": min(len(times) - 1, len(times) * 95 // 100), "max": -1}
    return {name: round(times[place] * 1e6) for name, place in places.items()}
