"""Host time of the scheduler, in microseconds by part, around a device that computes nothing.

    python bench/host.py [--profile decode|tenants|hit|burst] [--json FILE]

decode   a decode step of 256 sequences
tenants  the same, of 8 tenants
hit      one prompt of 8208 tokens, of which the first 8192 are cached, beside 32 running sequences
burst    256 simultaneous prompts of 64 tokens

Limits are a GPU's: 8192 tokens and 512 sequences per step, one step of look-ahead, with step records. `slots` is the
backend's update of its slots (`forward.slot_tensors`), on a CPU. Times are CPU times of the thread.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec
import torch

from penstock.cache import CacheManager, EvictionHistory
from penstock.engine.loop import EngineLoop
from penstock.flow import Frame, RowResult, SamplingParams, StepPlan, StepResult, Submit
from penstock.flow.messages import ToEngine
from penstock.forward.slot_tensors import SlotTensors
from penstock.schedule import Scheduler
from penstock.store.spec import CacheGroup

CONTEXT = 1 << 14
SEQUENCES = 512
BLOCK = 16


class NoDevice:
    """Keeps the slots, returns results at once."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.plans: list[StepPlan] = []
        self.slots = SlotTensors(SEQUENCES, CONTEXT, BLOCK, 1, torch.device("cpu"))

    def launch(self, plan: StepPlan) -> None:
        with self.clock.of("slots"):
            self.slots.apply(plan.admits, plan.extends)
        self.plans.append(plan)

    def collect(self) -> StepResult:
        plan = self.plans.pop(0)
        return StepResult(plan.number, [RowResult([7] if row.sample else []) for row in plan.rows])

    def reset(self) -> None: ...


class Clock:
    """Microseconds by part, of every round."""

    def __init__(self, profile: cProfile.Profile | None) -> None:
        self.profile = profile
        self.rounds: list[dict[str, float]] = []
        self.is_paused = False

    def begin(self) -> None:
        self.rounds.append(defaultdict(float))

    @contextmanager
    def of(self, part: str) -> Iterator[None]:
        if self.profile is not None:
            self.profile.enable()
        begin = time.thread_time()
        yield
        took = time.thread_time() - begin
        if self.profile is not None:
            self.profile.disable()
        if self.rounds and not self.is_paused:
            self.rounds[-1][part] += took * 1e6

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.is_paused = True
        yield
        self.is_paused = False

    def told(self) -> dict[str, float]:
        parts = {part: statistics.median(each[part] for each in self.rounds) for part in self.rounds[0]}
        return {part: round(took, 1) for part, took in parts.items()}


class Host:
    """The engine loop in separately timed parts."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        cache = CacheManager(
            [CacheGroup(0, (0,))], [4 * SEQUENCES * CONTEXT // BLOCK // 16], BLOCK, True, EvictionHistory()
        )
        self.scheduler = Scheduler(
            cache, step_tokens=8192, max_sequences=SEQUENCES, max_waiting=1000, policy="fair", lookahead=1,
            context=CONTEXT, recorded=True,
        )  # fmt: skip
        self.runner = NoDevice(clock)
        self.loop = EngineLoop(self.scheduler, self.runner)
        self.encode = msgspec.msgpack.Encoder().encode
        self.decode: msgspec.msgpack.Decoder[ToEngine] = msgspec.msgpack.Decoder(ToEngine)
        self.submitted = 0

    def submit(self, prompts: list[list[int]], max_output: int, tenants: int = 1) -> None:
        begin, now = self.submitted + 1, time.monotonic()
        self.submitted += len(prompts)
        sent = [
            self.encode(
                Submit(
                    f"r{n}/0", prompt, SamplingParams(), 0, max_output,
                    number=n, arrival=now, tenant=f"tenant {n % tenants}",
                )
            )
            for n, prompt in enumerate(prompts, begin)
        ]  # fmt: skip
        with self.clock.of("decode message"):
            messages = [self.decode.decode(data) for data in sent]
        with self.clock.of("submit"):
            for message in messages:
                assert isinstance(message, Submit)
                self.scheduler.submit(message)

    def step(self) -> bool:
        """As EngineLoop's."""
        with self.clock.of("plan"):
            plan = self.scheduler.plan()
        if plan is not None:
            self.runner.launch(plan)
        deltas = []
        if self.scheduler.in_flight > (1 if plan is not None else 0):
            result = self.runner.collect()
            with self.clock.of("settle"):
                deltas = self.scheduler.settle(result)
        record = self.scheduler.take_record()
        with self.clock.of("encode frame"):
            self.encode(Frame(deltas, record).packed())
        return plan is not None

    def finish(self) -> None:
        while self.step():
            pass


def decode(clock: Clock, rounds: int, tenants: int = 1) -> None:
    host = Host(clock)
    host.submit([[number, *range(20, 60)] for number in range(256)], CONTEXT, tenants)
    for _ in range(20):
        host.step()
    for _ in range(rounds):
        clock.begin()
        host.step()


def hit(clock: Clock, rounds: int) -> None:
    host = Host(clock)
    host.submit([[number, *range(20, 60)] for number in range(32)], CONTEXT)
    shared = [number * 7919 % 50_000 for number in range(8192)]
    host.submit([[*shared, *range(16)]], 1)
    for _ in range(10):
        host.step()
    for number in range(rounds):
        clock.begin()
        host.submit([[*shared, *range(number, number + 16)]], 1)
        host.step()
        with clock.paused():
            for _ in range(4):
                host.step()


def burst(clock: Clock, rounds: int) -> None:
    for turn in range(rounds):
        host = Host(clock)
        gc.collect()  # the previous one
        clock.begin()
        host.submit([[turn, number, *range(100, 162)] for number in range(256)], 8)
        host.step()
        host.step()


CASES = {
    "decode": (decode, 2000),
    "tenants": (partial(decode, tenants=8), 2000),
    "hit": (hit, 200),
    "burst": (burst, 30),
}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--profile", choices=CASES)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    torch.set_num_threads(1)
    gc.freeze()  # as an engine process does
    if options.profile:
        profile = cProfile.Profile()
        case, rounds = CASES[options.profile]
        case(Clock(profile), rounds)
        profile.print_stats("tottime")
        return
    found = {}
    for name, (case, rounds) in CASES.items():
        clock = Clock(None)
        case(clock, rounds)
        found[name] = clock.told()
    print(json.dumps(found, indent=2))
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
