"""Feeds a Journal the events of simulated requests and engine steps, on a simulated clock."""

from __future__ import annotations

from array import array

from penstock.flow import Delta, FinishReason, record
from penstock.flow.identity import Source
from penstock.flow.record import Admission, Finding
from penstock.observe import events
from penstock.observe.trace.journal import Journal


class JournalDriver:
    def __init__(self, *, keep_texts: bool = False, max_done: int = 2000) -> None:
        self.now = 100.0
        self.events: list[events.Event] = []
        self.source = Source("m")
        self.journal = Journal(self.source, keep_texts=keep_texts, clock=lambda: self.now, max_done=max_done)
        self.numbers = 0
        self.steps = 0
        self.open: dict[str, int] = {}  # request -> number of its sequence

    def tell(self, event: events.Event) -> None:
        self.events.append(event)
        self.journal.record(event)

    def later(self, seconds: float) -> float:
        self.now += seconds
        return self.now

    def accept(
        self, name: str, *, prompt: int = 40, kind: str = "chat", tenant: str = "", request_id: str = ""
    ) -> None:
        """Emit all frontend events up to Queued; each stage takes 1 ms."""
        self.numbers += 1
        self.open[name] = self.numbers
        self.tell(events.Accepted(name, self.now, request_id or f"req-{name}", kind, None, tenant))
        self.tell(events.Parsed(name, self.later(0.001), stream=True))
        self.tell(events.Validated(name, self.later(0.001), {"max_tokens": 8}))
        start = self.now
        self.tell(events.Rendered(name, self.later(0.001), start, self.source.model))
        start = self.now
        self.tell(events.Tokenized(name, self.later(0.001), start, list(range(prompt)), self.source.model))
        sequences = [(self.numbers, f"{name}/0", 0, 0, prompt)]
        self.tell(events.Queued(name, self.later(0.001), sequences, self.source))

    def step(
        self,
        rows: dict[str, int],
        *,
        seconds: float = 0.02,
        admissions: dict[str, Finding] | None = None,
        waits: dict[str, int] | None = None,
        preemptions: tuple[str, ...] = (),
        finish: dict[str, FinishReason] | None = None,
        cached: int = 0,
        overtaken: int = 0,
        blocks: tuple[int, int, int, int, int] = (10, 0, 0, 5, 85),
        as_numbers: bool = False,
        waiting: int = 0,
        blocked: int = record.STEP,
    ) -> None:
        """`rows`: request -> tokens computed; each gets a token. One token of a request that was let in is a decode.
        `waits`: microseconds by reason, of the admissions. `as_numbers`: further tokens are delivered as numbers, not
        as Deltas."""
        self.steps += 1
        start = self.now
        waits_us = tuple((waits or {}).get(reason, 0) for reason in record.WAITS)
        entries = [
            record.pack_admission(Admission(self.open[name], start - 0.001, cached, waits_us, 0, overtaken, finding))
            for name, finding in (admissions or {}).items()
        ]
        packed = array("I")
        for name, count in rows.items():
            packed.append(self.open[name])
            packed.append(count | record.DECODE if count == 1 else count)
        back = [(self.open[name], record.BLOCKS) for name in preemptions]
        end = self.later(seconds)
        spans = (50, round(seconds * 1e6) - 50, round(seconds * 1e6))
        in_queue = record.counts_by_reason({blocked: waiting})
        data = record.pack(self.steps, start, spans, in_queue, (len(rows), 0, blocked), [blocks], entries, back, packed)
        deltas = [Delta(id=f"{name}/0", tokens=[1], finish=(finish or {}).get(name)) for name in rows]
        received = self.later(0.001)
        times = [self.later(0.0001) for _ in deltas]
        assert end < received
        done = times[-1] if times else received
        further = [name for name in rows if as_numbers and self._begun(name)]
        numbers = array("I", [self.open[name] for name in further])
        others = [(delta, t) for delta, t in zip(deltas, times, strict=True) if delta.id[:-2] not in further]
        deltas, times = [delta for delta, _ in others], [t for _, t in others]
        self.tell(events.Delivered("", done, received, data, deltas, times, self.source, numbers, done))

    def write(self, name: str, seconds: float = 0.0005, num_bytes: int = 100) -> None:
        start = self.now
        self.tell(events.Flushed(name, self.later(seconds), start, num_bytes))

    def finish(
        self,
        name: str,
        finish: FinishReason = FinishReason.LENGTH,
        code: str | None = None,
        prompt: int | None = None,
        cached: int = 0,
    ) -> None:
        """`prompt` and `cached`: tokens, as an upstream has counted them."""
        number = self.open.pop(name)
        sequence = self.journal.sequences.get(number)
        prompt = (sequence.prompt_tokens if sequence is not None else 40) if prompt is None else prompt
        text = "the answer" if self.journal.keep_texts else None
        ended = events.Ended(number, finish, None, prompt, cached, 3, text)
        self.tell(events.Finished(name, self.now, [ended], code, code and "it broke"))

    def serve(self, name: str, *, tokens: int = 3, tenant: str = "", **options: object) -> None:
        """Run one request from accept to finish, alone in the batch."""
        self.accept(name, tenant=tenant)
        self.step({name: 40}, admissions={name: Finding(record.NOTHING_ALIKE)}, **options)  # type: ignore[arg-type]
        self.write(name)
        for place in range(1, tokens):
            last = place == tokens - 1
            self.step({name: 1}, finish={name: FinishReason.LENGTH} if last else None)
            self.write(name)
        self.finish(name)

    def _begun(self, name: str) -> bool:
        request = self.journal.find(name)
        return request is not None and request.answered
