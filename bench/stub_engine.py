"""An engine process that computes nothing: it uses the real IPC link and emits one token per sequence and step, so that
a frontend can be measured alone. `serve` of this file is `penstock serve` with such an engine.

    python bench/stub_engine.py serve MODEL --port 8000      STUB_STEP_MS=5 STUB_PREFILL=280000 in the environment

A step lasts STUB_STEP_MS at least; prompts are "computed" at STUB_PREFILL tokens per second. The output of a sequence
is text from the middle of its prompt. With STUB_REPLAY, steps between which no sequence comes or goes are recorded,
and sent again and again: the engine is never the bound then.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Sequence as Sequence_
from pathlib import Path
from typing import Any

from penstock.engine import process
from penstock.engine.ipc import IpcLink, PeerGone, open_engine_link
from penstock.engine.links import EngineLinks, Link
from penstock.flow import Cancel, Delta, FinishReason, Frame, Query, Ready, Reply, Start, Submit, Timings, record
from penstock.flow.messages import Stop, ToEngine, TokenLogprobs
from penstock.gateway.keys.stored_keys import StoredKeys
from penstock.gateway.limits.local_limiter import LocalLimiter
from penstock.http.response_store import ResponseStore
from penstock.observe.history import History
from penstock.observe.trace.journal import Journal
from penstock.observe.trace.step_ring import StepRing
from penstock.tokenize.tokenizer import Tokenizer

MAX_RUNNING = 1024
VECTOR = array("f", [1.0] + [0.0] * 575).tobytes()
BLOCKS = [(1000, 0, 0, 0, 100_000)]
FACTS = {
    "load_s": 0.0, "weights_bytes": 0, "device": "stub", "kernels": "no", "dtype": "none", "kv_tokens": 1 << 20,
    "kv_dtype": "none", "kv_bytes": 1 << 20, "context": 8192, "max_sequences": MAX_RUNNING, "block_size": 16,
    "prefix_caching": True, "speculation": "off", "weights": "none",
}  # fmt: skip


class Sequence:
    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        middle = len(submit.tokens) // 2
        self.text = submit.tokens[middle // 2 : middle + 1] or submit.tokens
        self.output = 0
        self.uncomputed = len(submit.tokens)
        self.received = time.monotonic()
        self.first: float | None = None

    def next(self) -> Delta:
        token = self.text[self.output % len(self.text)]
        self.output += 1
        now = time.monotonic()
        self.first = self.first or now
        wanted = self.submit.params.logprobs
        logprobs = (
            None if wanted is None else [TokenLogprobs(token, -1.0, 1, [(place, -1.0) for place in range(wanted)])]
        )
        if self.output < self.submit.max_output:
            number = self.submit.number if self.output > 1 and wanted is None else 0
            return Delta(id=self.submit.id, tokens=[token], number=number, logprobs=logprobs)
        times = Timings(self.submit.arrival, self.received, self.first, now)
        return Delta(id=self.submit.id, tokens=[token], finish=FinishReason.LENGTH, timings=times, logprobs=logprobs)


class StubEngine:
    def __init__(self, link: IpcLink[ToEngine], step_s: float, prefill_per_s: float) -> None:
        self.links = EngineLinks(link)
        self.step_s = step_s
        self.prefill = max(1, int(step_s * prefill_per_s))  # prompt tokens of a step
        self.waiting: deque[Sequence] = deque()
        self.running: dict[str, Sequence] = {}
        self.steps = 0
        self.recorder = Recorder(self.links) if os.environ.get("STUB_REPLAY") else None

    def run(self) -> None:
        facts = {**FACTS, "pid": os.getpid()}
        (start,) = self.links.starter.receive(None)
        assert isinstance(start, Start)
        if start.listen is not None:
            self.links.listen(start.listen, lambda: facts)
        self.links.starter.send(Ready(facts))
        due = time.monotonic()
        while True:
            busy = bool(self.waiting or self.running)
            wait_s = max(0.0, due - time.monotonic()) if busy else None
            if not busy:
                due = 0.0
            elif wait_s and wait_s > 0.0005:
                time.sleep(wait_s)
            for link, message in self.links.receive(0.0 if busy else None):
                if isinstance(message, Stop):
                    return
                self.handle(link, message)
            if self.waiting or self.running:
                now = time.monotonic()
                due = max(due, now - self.step_s) + self.step_s
                self.step(now)

    def handle(self, link: Link, message: Any) -> None:
        match message:
            case Submit():
                self.waiting.append(Sequence(message))
            case Cancel():
                found = self.running.pop(message.id, None)
                if found is None:
                    found = next((one for one in self.waiting if one.submit.id == message.id), None)
                    if found is not None:
                        self.waiting.remove(found)
                if found is not None:
                    now = time.monotonic()
                    times = Timings(found.submit.arrival, found.received, found.first, now)
                    self.links.send(link, Frame([Delta(id=message.id, finish=message.finish, timings=times)]))
            case Query():
                stats = {
                    "steps": self.steps, "running": len(self.running), "waiting": len(self.waiting),
                    "blocks": [dict(zip(record.Blocks._fields, group, strict=True)) for group in BLOCKS],
                }  # fmt: skip
                self.links.send(link, Reply(message.id, value=stats))

    def step(self, start: float) -> None:
        self.steps += 1
        if self.recorder is not None and not self.waiting and self.recorder.replay(self.pack, self.running, start):
            return
        admissions = self.compute_prompts()
        rows = array("I")
        deltas = []
        for name, sequence in list(self.running.items()):
            rows.extend((sequence.submit.number, record.DECODE | 1))
            delta = sequence.next()
            deltas.append(delta)
            if delta.finish is not None:
                del self.running[name]
        if self.recorder is not None:
            stays = not admissions and len(deltas) == len(self.running)
            self.recorder.record(deltas if stays else [], rows)
        self.links.send_frame(Frame(deltas, self.pack(start, rows, admissions)))

    def pack(self, start: float, rows: array[int], admissions: Sequence_[bytes] = ()) -> bytes:
        waits = record.counts_by_reason({record.SLOT: len(self.waiting)})
        state = (len(self.running), 0, record.STEP)
        return record.pack(self.steps, start, (100, 200, 300), waits, state, BLOCKS, admissions, [], rows)

    def compute_prompts(self) -> list[bytes]:
        left, admissions = self.prefill, []
        while left > 0 and self.waiting and len(self.running) < MAX_RUNNING:
            first = self.waiting[0]
            count = min(left, first.uncomputed)
            first.uncomputed -= count
            left -= count
            if first.uncomputed == 0 and first.submit.task == "embed":
                self.waiting.popleft()
                times = Timings(first.submit.arrival, first.received, None, time.monotonic())
                ended = Delta(id=first.submit.id, finish=FinishReason.END, embedding=VECTOR, timings=times)
                self.links.send_frame(Frame([ended]))
            elif first.uncomputed == 0:
                self.waiting.popleft()
                self.running[first.submit.id] = first
                entry = record.Admission(
                    first.submit.number, first.received, 0, (0,) * len(record.WAITS), 0, 0, record.Finding()
                )
                admissions.append(record.pack_admission(entry))
        return admissions


class Recorder:
    """Of steps in which all sequences get a token and nothing else: what each link is sent."""

    LENGTH = 32  # steps

    def __init__(self, links: EngineLinks) -> None:
        self.links = links
        self.steps: list[dict[Any, bytes]] = []  # the pairs of `Frame.tokens` by link
        self.rows: array[int] = array("I")
        self.left = 0  # until a sequence ends

    def record(self, deltas: list[Delta], rows: array[int]) -> None:
        if not deltas or any(not delta.number for delta in deltas) or (self.steps and rows != self.rows):
            self.steps, self.left = [], 0
            return
        pairs: dict[Any, array[int]] = {}
        for delta in deltas:
            pairs.setdefault(self.links._owners.get(delta.id), array("I")).extend((delta.number, delta.tokens[0]))
        self.steps.append({link: words.tobytes() for link, words in pairs.items()})
        self.rows = rows

    def replay(self, pack: Any, running: dict[str, Sequence], start: float) -> bool:
        """Send a step once enough of them are recorded; False: there is none to send."""
        if len(self.steps) < self.LENGTH:
            return False
        if not self.left:
            self.left = min(one.submit.max_output - one.output for one in running.values()) - 1
            if self.left <= 0:
                self.steps = []
                return False
            for one in running.values():  # ahead of time
                one.output += self.left
        self.left -= 1
        if not self.left:
            self.steps, step = [], self.steps[0]
        else:
            step = self.steps[self.left % self.LENGTH]
        links, packed = self.links, pack(start, self.rows)
        links._records += 1
        number = links._records if links._listener is not None else 0
        links.starter.send(Frame([], packed, step.get(None, b""), number))
        for link, tokens in step.items():
            if link is not None:
                link.send(Frame([], None, tokens, number))
                if link.framed.unsent_bytes:
                    links._watch(link.framed.fileno(), link)
        return True


def serve() -> None:
    """`penstock serve …` with the engine of this file."""
    popen = subprocess.Popen

    def start(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        if command[1:3] == ["-m", "penstock.engine.worker"]:
            command = [sys.executable, __file__, "engine", command[3]]
        return popen(command, **options)

    process.subprocess.Popen = start  # type: ignore[misc, assignment]
    if path := os.environ.get("STUB_COUNTS"):
        watched: list[Any] = []
        for kind in (Journal, StepRing, Tokenizer, LocalLimiter, History, ResponseStore, StoredKeys):
            remember(kind, watched)
        threading.Thread(target=count_objects, args=(path, 60.0, watched), daemon=True).start()
    from penstock.cli import main

    main()


def remember(kind: type[Any], made: list[Any]) -> None:
    """Add each instance to the list: frozen objects cannot be found otherwise."""
    init = kind.__init__

    def remembered(self: Any, *arguments: Any, **named: Any) -> None:
        made.append(self)
        init(self, *arguments, **named)

    kind.__init__ = remembered


def count_objects(path: str, every_s: float, watched: list[Any]) -> None:
    """Print the number of objects by type, one JSON object per line."""
    while True:
        time.sleep(every_s)
        gc.collect()
        counts = Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects())
        sizes = {
            f"{type(one).__name__}{name}": len(value)
            for one in watched
            for name, value in [("", one), *((f".{name}", value) for name, value in vars(one).items())]
            if hasattr(value, "__len__")
        }
        with Path(path).open("a") as file:
            file.write(json.dumps({"t": time.monotonic(), "types": counts.most_common(40), "sizes": sizes}) + "\n")


def engine(address: str) -> None:
    if cores := os.environ.get("STUB_CORES"):
        os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    step_s = float(os.environ.get("STUB_STEP_MS", "5")) / 1000
    prefill = float(os.environ.get("STUB_PREFILL", "280000"))
    with contextlib.suppress(PeerGone):
        StubEngine(open_engine_link(address, lifeline=sys.stdin.fileno()), step_s, prefill).run()


if __name__ == "__main__":
    engine(sys.argv[2]) if sys.argv[1] == "engine" else serve()
