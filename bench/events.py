"""The cost of observability: an engine step with and without its record, and the journal that reads it.

    python bench/events.py [--sequences 16] [--steps 2000] [--json FILE]
    python bench/events.py --server smollm2 [--rounds 3]

The first form runs the real scheduler, link encoding and journal around a device that takes no time, so the figures are
microseconds per step; compare them with the step time of your model (the second form prints it). The second form
starts two servers of a model, one with --no-events, and gives them the same load in turns.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import time
from pathlib import Path

import httpx
import msgspec

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from penstock.cache import CacheManager, EvictionHistory
from penstock.engine.loop import EngineLoop
from penstock.flow import Frame, RowResult, SamplingParams, StepPlan, StepResult, Submit
from penstock.flow.messages import FromEngine
from penstock.observe import events
from penstock.observe.trace.journal import Journal
from penstock.schedule import Scheduler
from penstock.store.spec import CacheGroup

CONTEXT = 1 << 16


class NoDevice:
    """Returns results at once."""

    def launch(self, plan: StepPlan) -> None:
        self.plan = plan

    def collect(self) -> StepResult:
        return StepResult(self.plan.number, [RowResult([7] if row.sample else []) for row in self.plan.rows])

    def reset(self) -> None: ...


def loop_of(sequences: int, *, recorded: bool) -> EngineLoop:
    history = EvictionHistory() if recorded else None
    cache = CacheManager([CacheGroup(0, (0,))], [2 * CONTEXT], 16, True, history)
    scheduler = Scheduler(
        cache, step_tokens=512, max_sequences=64, max_waiting=1000, policy="fcfs", lookahead=0, context=CONTEXT,
        recorded=recorded,
    )  # fmt: skip
    loop = EngineLoop(scheduler, NoDevice())
    for number in range(1, sequences + 1):
        params = SamplingParams(max_tokens=CONTEXT - 100)
        tokens = [number, *range(20, 60)]
        loop.handle(Submit(f"r{number}/0", tokens, params, 0, CONTEXT - 100, number=number))
    return loop


def engine_us(sequences: int, steps: int, *, recorded: bool) -> tuple[float, list[bytes]]:
    """Microseconds per step, including encoding and decoding of the frame; and the frames."""
    loop = loop_of(sequences, recorded=recorded)
    encode = msgspec.msgpack.Encoder().encode
    decode = msgspec.msgpack.Decoder(FromEngine).decode
    for _ in range(20):
        loop.step()
    frames = []
    begin = time.perf_counter()
    for _ in range(steps):
        data = encode(loop.step().packed())
        decode(data)
        frames.append(data)
    return (time.perf_counter() - begin) / steps * 1e6, frames


def journal_us(sequences: int, frames: list[bytes]) -> float:
    """Microseconds per step that the frontend spends on a frame's record and deltas, and on one write per delta."""
    journal = Journal()
    for number in range(1, sequences + 1):
        journal.record(events.Accepted(f"r{number}", 0.0, f"q{number}", "chat"))
        journal.record(events.Queued(f"r{number}", 0.0, [(number, f"r{number}/0", 0, 0, 41)]))
    messages = [msgspec.msgpack.decode(data, type=FromEngine) for data in frames]
    begin = time.perf_counter()
    for message in messages:
        assert isinstance(message, Frame)
        start = time.monotonic()
        times = [time.monotonic() for _ in message.deltas]
        numbers, _ = message.pairs()
        delivered = events.Delivered("", start, start, message.record, message.deltas, times)
        journal.record(msgspec.structs.replace(delivered, numbers=numbers, tokens_done=time.monotonic()))
        for number in numbers:
            journal.record(events.Flushed(f"r{number}", time.monotonic(), start, 200))
    return (time.perf_counter() - begin) / len(messages) * 1e6


def micro(sequences: int, steps: int) -> dict[str, float]:
    off, on, journal = [], [], []
    for _ in range(7):
        off.append(engine_us(sequences, steps, recorded=False)[0])
        took, frames = engine_us(sequences, steps, recorded=True)
        on.append(took)
        journal.append(journal_us(sequences, frames))
    return {
        "sequences": sequences,
        "engine_step_off_us": round(min(off), 2),
        "engine_step_on_us": round(min(on), 2),
        "engine_cost_us": round(min(on) - min(off), 2),
        "journal_cost_us": round(min(journal), 2),
    }


async def load(url: str, model: str, streams: int, tokens: int) -> float:
    """Tokens per second."""
    async with httpx.AsyncClient(timeout=600) as client:

        async def one(place: int) -> int:
            body = {
                "model": model, "stream": True, "max_tokens": tokens, "ignore_eos": True, "temperature": 0,
                "messages": [{"role": "user", "content": f"{place}: tell me about rivers."}],
            }  # fmt: skip
            count = 0
            async with client.stream("POST", f"{url}/v1/chat/completions", json=body) as answer:
                answer.raise_for_status()
                async for line in answer.aiter_lines():
                    count += line.startswith("data: {")
            return count

        begin = time.perf_counter()
        await asyncio.gather(*(one(place) for place in range(streams)))
        return streams * tokens / (time.perf_counter() - begin)


def served(model: str, rounds: int, streams: int, tokens: int) -> dict[str, object]:
    from helpers.server_process import Server

    options = ("--context", 2048, "--kv-memory", "400MB")
    with Server(model, *options) as watched, Server(model, *options, "--no-events") as plain:
        rates: dict[str, list[float]] = {"on": [], "off": []}
        for place in range(rounds + 1):
            turn = [("on", watched), ("off", plain)]
            for name, server in turn if place % 2 else reversed(turn):
                rate = asyncio.run(load(server.url, model, streams, tokens if place else 4))
                if place:  # the first warms up
                    rates[name].append(round(rate, 2))
        measured = httpx.get(f"{watched.url}/observe/facts", timeout=60).json()["measured"]
    ratios = [on / off for on, off in zip(rates["on"], rates["off"], strict=True)]
    batch = next((entry for entry in measured["decode_by_batch"] if entry["batch"] == streams), None)
    return {**rates, "on_over_off_median": round(statistics.median(ratios), 4), "step": batch}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sequences", type=int, default=16)
    arguments.add_argument("--steps", type=int, default=2000)
    arguments.add_argument("--server", metavar="MODEL")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--tokens", type=int, default=24)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    if options.server:
        result: dict[str, object] = served(options.server, options.rounds, options.sequences, options.tokens)
    else:
        result = dict(micro(options.sequences, options.steps))
    print(json.dumps(result, indent=2))
    if options.json:
        options.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
