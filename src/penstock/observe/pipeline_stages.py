"""The pipeline, stage by stage: how many requests are in each now, and how long each took for the requests that ended
lately. Made from the journal when it is read: recording costs nothing for it."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from statistics import fmean
from typing import Any

from penstock.observe.performance import percentile_us
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.records import RequestTrace, SequenceTrace
from penstock.observe.trace.timeline import stages

# In the order in which a request passes them.
PIPELINE_STAGES = (
    "auth", "limits", "validate", "context", "route", "template", "tokenize", "queue", "prefill", "decode", "sample",
    "speculate", "detokenize", "stream", "ledger",
)  # fmt: skip
MAX_REQUESTS = 256  # whose times are read
FRESH_S = 0.4  # readers share an answer for so long

# Where requests were refused, by the code of the error; the others were refused by validation.
REFUSED_BY = {
    "rate_limit_exceeded": "limits",
    "insufficient_quota": "limits",
    "limits_unavailable": "limits",
    "model_not_found": "route",
    "upstream_failed": "route",
    "upstream_busy": "route",
    "upstream_timeout": "route",
    "queue_full": "queue",
    "ledger_unavailable": "ledger",
}
# The stages of a trace (`timeline.stages`) as those of the pipeline.
_PATH = {
    "intake": "validate", "submit": "queue", "prefill_replica": "prefill", "kv_transfer": "prefill",
    "deliver": "detokenize", "write": "stream",
}  # fmt: skip


class PipelineStages:
    """All tenants together, as metrics are. Belongs to one event loop."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._read: dict[float, tuple[float, dict[str, Any]]] = {}  # by window: when, and what was told

    async def read(self, window_s: float) -> dict[str, Any]:
        """Of the requests that ended within `window_s`, the newest MAX_REQUESTS at most."""
        now = self._journal.clock()
        made, told = self._read.get(window_s, (0.0, {}))
        if not told or now - made >= FRESH_S:
            recent, open_requests = list(self._recent(now - window_s)), self._journal.open.values()
            present = Counter(_place(request, sequence) for request in open_requests for sequence in _each(request))
            told = {
                "t": self._journal.at(now),
                "window_s": window_s,
                "requests": len(recent),
                "open": len(open_requests),
                **await asyncio.to_thread(_summarize, recent, present, now),
                "totals": asdict(self._journal.totals),
            }
            self._read = {window_s: (now, told)}
        return told

    def _recent(self, since: float) -> Iterator[RequestTrace]:
        for request in islice(reversed(self._journal.done), MAX_REQUESTS):
            if request.end is None or request.end < since:
                return
            yield request


def _summarize(recent: list[RequestTrace], present: Counter[str], now: float) -> dict[str, Any]:
    times: defaultdict[str, list[float]] = defaultdict(list)
    path_s: defaultdict[str, float] = defaultdict(float)
    refused: Counter[str] = Counter()
    for request in recent:
        if request.finish == "rejected":
            refused[REFUSED_BY.get(request.code or "", "validate")] += 1
        for stage, seconds in _times(request):
            times[stage].append(seconds)
        for name, start, end in stages(request, now):
            path_s[_PATH.get(name, name)] += end - start
    return {
        "stages": [_stage(name, times[name], present[name], refused[name]) for name in PIPELINE_STAGES],
        "path_us": {name: round(seconds * 1e6) for name, seconds in path_s.items()},
    }


def _stage(name: str, times: list[float], present: int, refused: int) -> Mapping[str, Any]:
    times.sort()
    return {
        "name": name,
        "now": present,
        "count": len(times),
        "us_mean": round(fmean(times) * 1e6, 1) if times else None,
        "us_p50": percentile_us(times, 0.5),
        "us_p95": percentile_us(times, 0.95),
        "refused": refused,
    }


def _times(request: RequestTrace) -> Iterator[tuple[str, float]]:
    """Seconds of each pass of a request through a stage."""
    if request.auth_s:
        yield "auth", request.auth_s
    if request.parsed is not None:
        yield "validate", (request.validated or request.parsed) - request.accepted
    for stage, start, end in request.work:
        yield stage, end - start
    for start, end in request.rendered:
        yield "template", end - start
    for start, end in request.tokenized:
        yield "tokenize", end - start
    for sequence in request.sequences:
        if sequence.admitted is not None:
            yield "queue", sequence.admitted - sequence.queued
            prefilled = sequence.first_token or sequence.finished
            if prefilled is not None:
                yield "prefill", prefilled - sequence.admitted
        if sequence.first_token is not None and sequence.finished is not None and sequence.output_tokens > 1:
            yield "decode", sequence.finished - sequence.first_token
        if sequence.text_done is not None and sequence.heard:
            yield "detokenize", max(sequence.text_done - sequence.heard, 0.0)
    if request.num_writes:
        yield "stream", request.write_us * 1e-6


def _each(request: RequestTrace) -> list[SequenceTrace | None]:
    """Its open sequences; None for a request that has none yet, or none any more."""
    return [one for one in request.sequences if one.finish is None] or [None]


def _place(request: RequestTrace, sequence: SequenceTrace | None) -> str:
    """Where an open request, or one of its sequences, is now."""
    if sequence is not None:
        return "queue" if sequence.waiting else "prefill" if sequence.first_token is None else "decode"
    if request.sequences:
        return "stream"
    if request.tokenized:
        return "tokenize"
    return "template" if request.rendered else "validate"
