"""Requests as the debug API shows them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from penstock.flow.record import WAITS
from penstock.flow.routing import Decision, FailedAttempt
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.prefix_explanation import explain_prefix
from penstock.observe.trace.records import RequestTrace, SequenceTrace
from penstock.observe.trace.timeline import downsample, gaps_us, spans, stages, totals

SLOW_CLIENT_SHARE = 0.25  # of a request's time spent writing to its socket


class Texts(Protocol):
    def decode(self, tokens: Sequence[int], *, skip_special: bool = True) -> str: ...


class ViewedModel(NamedTuple):
    """What a view needs to know of a model."""

    texts: Texts
    block_size: int


class View:
    def __init__(self, journal: Journal, find_model: Callable[[str], ViewedModel | None]) -> None:
        """`find_model` by name; None: an upstream, or a model that was removed."""
        self.journal = journal
        self._find_model = find_model

    def summary(self, request: RequestTrace) -> dict[str, Any]:
        at, first = self.journal.at, request.first_token_s
        sequences = request.sequences
        queue = [s.admitted - s.queued for s in sequences if s.admitted is not None]
        rate = request.tokens_per_s
        return {
            "number": request.number,
            "id": request.id,
            "request_id": request.request_id,
            "kind": request.kind,
            "model": request.model,
            "replica": request.replica,
            "asked": request.asked,
            "batch": request.batch,
            "stream": request.stream,
            "state": request.state,
            "t": at(request.accepted),
            "end": at(request.end),
            "prompts": 1 + max((s.prompt for s in sequences), default=-1),
            "choices": len(sequences),
            "prompt_tokens": request.prompt_tokens,
            "cached_tokens": request.cached_tokens,
            "output_tokens": request.output_tokens,
            "queue_us": round(max(queue) * 1e6) if queue else None,
            "ttft_us": None if first is None else round(first * 1e6),
            "e2e_us": None if request.end is None else round((request.end - request.accepted) * 1e6),
            "tokens_per_s": None if rate is None else round(rate, 2),
            "waited_for": next((s.waited_for for s in sequences if s.waited_for), None),
            "preemptions": sum(len(s.preemptions) for s in sequences),
            "finish": request.finish,
            "cost_usd": None if request.microusd is None else request.microusd / 1e6,
            "error": _error(request),
            "opening": request.opening or None,
            "seqs": [s.number for s in sequences],
        }

    def overview(self, request: RequestTrace) -> dict[str, Any]:
        """Everything that is cheap to make, as of now: all but what needs its steps."""
        at, now = self.journal.at, self.journal.clock()
        end = request.end if request.end is not None else now
        return {
            **self.summary(request),
            "stages": [
                {"name": name, "start": at(start), "end": at(end), "us": round((end - start) * 1e6)}
                for name, start, end in stages(request, now)
            ],
            "sequences": [self._sequence(request, sequence) for sequence in request.sequences],
            "events": sorted(self._events(request), key=lambda event: event["t"]),
            "params": request.params,
            "safety": [
                {"t": at(hit.t), "rule": hit.rule, "where": hit.where, "part": hit.part, "text": hit.text}
                for hit in request.safety
            ],
            "context": None if request.context is None else msgspec.to_builtins(request.context),
            "route": [_step_of_route(one) for one in request.route],
            "slow_client": request.write_us * 1e-6 > SLOW_CLIENT_SHARE * (end - request.accepted),
            "trace_id": None if request.trace is None else request.trace.id,
        }

    def with_steps(self, request: RequestTrace, known: dict[str, Any]) -> dict[str, Any]:
        """The overview `known` and what its steps add, which may be many. Safe in any thread."""
        at = self.journal.at
        found = spans(request, self.journal)
        gaps = gaps_us(request, found)
        prompts = request.prompts
        texts = None
        if prompts is not None:
            texts = {"prompts": [self.text(request, tokens) for tokens in prompts], "answers": request.answers or []}
        return {
            **known,
            "spans": [
                {
                    "stage": span.stage, "seq": span.number, "start": at(span.start), "end": at(span.end),
                    "step": span.step, "tokens": span.tokens, "count": span.joined,
                }
                for span in downsample(found)
            ],
            "totals": totals(request, found),
            "sequences": [{**one, "inter_token_us": gaps.get(one["seq"])} for one in known["sequences"]],
            "texts": texts,
        }  # fmt: skip

    def _sequence(self, request: RequestTrace, sequence: SequenceTrace) -> dict[str, Any]:
        at = self.journal.at
        own = request.prompts[sequence.prompt] if request.prompts is not None else None
        model = self._find_model(request.source.model)
        return {
            "seq": sequence.number,
            "prompt": sequence.prompt,
            "choice": sequence.choice,
            "prompt_tokens": sequence.prompt_tokens,
            "cached_tokens": sequence.cached,
            "output_tokens": sequence.output_tokens,
            "drafted_tokens": sequence.drafted,
            "accepted_tokens": sequence.accepted,
            "queued_at": at(sequence.queued),
            "received_at": at(sequence.received),
            "admitted_at": at(sequence.admitted),
            "first_token_at": at(sequence.first_token),
            "finished_at": at(sequence.finished),
            "first_step": sequence.first_step or None,
            "last_step": sequence.last_step or None,
            "wait": {
                "reason": sequence.waited_for,
                "by_us": dict(zip(WAITS, sequence.waits_us, strict=True)),
                "ahead": sequence.ahead,
                "overtaken": sequence.overtaken,
            },
            "preemptions": [{"t": at(t), "step": step, "why": WAITS[why]} for t, step, why in sequence.preemptions],
            "finish": sequence.finish,
            "stop": sequence.stop if request.prompts is not None or isinstance(sequence.stop, int) else None,
            "cache": None
            if model is None
            else explain_prefix(
                sequence.finding,
                sequence.prompt_tokens,
                sequence.cached,
                model.block_size,
                own,
                lambda tokens: self.text(request, tokens),
            ),
        }

    def _events(self, request: RequestTrace) -> Iterator[dict[str, Any]]:
        def event(t: float | None, name: str, seq: int | None = None, **details: Any) -> Iterator[dict[str, Any]]:
            if t is not None:
                yield {"t": self.journal.at(t), "name": name, "seq": seq, **details}

        yield from event(request.accepted, "accepted")
        yield from event(request.parsed, "parsed")
        yield from event(request.validated, "validated")
        for _, end in request.rendered:
            yield from event(end, "rendered")
        for _, end in request.tokenized:
            yield from event(end, "tokenized")
        for s in request.sequences:
            yield from event(s.queued, "queued", s.number, tokens=s.prompt_tokens)
            yield from event(s.received, "received", s.number, ahead=s.ahead)
            yield from event(s.admitted, "admitted", s.number, cached=s.cached, waited_for=s.waited_for)
            yield from event(s.first_token, "first_token", s.number)
            for t, step, why in s.preemptions:
                yield from event(t, "preempted", s.number, step=step, why=WAITS[why])
            yield from event(s.finished, "stopped", s.number, why=s.finish)
            yield from event(s.text_done, "detokenized", s.number, tokens=s.output_tokens)
        if request.num_writes and len(request.writes) >= 3:
            start = request.accepted + request.writes[-3] * 1e-6
            yield from event(start + request.writes[-2] * 1e-6, "flushed", bytes=request.written)
        for hit in request.safety:
            yield from event(hit.t, "safety_hit", rule=hit.rule, where=hit.where, part=hit.part)
        yield from event(request.end, "rejected" if request.finish == "rejected" else "finished", finish=request.finish)

    def text(self, request: RequestTrace, tokens: Sequence[int]) -> str:
        """Tokens of a request, by its model's tokenizer."""
        model = self._find_model(request.source.model)
        return "" if model is None else model.texts.decode(list(tokens), skip_special=False)


def _step_of_route(step: Decision | FailedAttempt) -> dict[str, Any]:
    kind = "decision" if isinstance(step, Decision) else "failure"
    return {"kind": kind, **msgspec.to_builtins(step)}


def _error(request: RequestTrace) -> dict[str, Any] | None:
    if request.code is None:
        return None
    return {"code": request.code, "message": request.message, "status": request.status}
