"""Prefix affinity over several replicas, on a trace of real conversations: the share of prompt tokens found cached, and
how even the load is.

    python bench/routing.py mooncake_conversation_trace.jsonl.gz [--replicas 4] [--tokens 400000] [--json FILE]

The trace is Mooncake's: arrival, lengths, and a hash per 512 tokens of the prompt. Prompts are clipped to `--context`.
Each replica is a real `cache.manager.CacheManager` behind a queue that computes `--prefill` tokens per second. Requests
go through the real policies (`gateway.decision`) and the real tracker of prefixes (`deployment.prefix_tracker`), which
know only what a frontend knows. In the same run:

one          a single replica with the blocks and the speed of all: what can be had at most
round robin  the replicas in turn
load         the fewest queued tokens
prefix       the default policy
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock.cache.manager import CacheManager
from penstock.deployment.prefix_tracker import PrefixTracker, prompt_keys
from penstock.flow.prefix import draw_secret
from penstock.gateway.candidate import Candidate, Demand
from penstock.gateway.decision import decide
from penstock.gateway.recent_work import RecentWork
from penstock.store.spec import CacheGroup

HASHED = 512  # tokens per hash of the trace: one block here
DECODE_S = 0.02  # per output token


@dataclass
class Arrival:
    at: float
    tokens: list[int]
    output: int


@dataclass
class Replica:
    name: str
    cache: CacheManager
    tracker: PrefixTracker
    prefill_per_s: float
    recent: RecentWork
    free_at: float = 0.0  # when its queue is computed
    computed: int = 0  # prompt tokens
    cached: int = 0
    output: int = 0
    queue: list[tuple[float, int]] = field(default_factory=list)  # when a prompt is computed, its tokens
    holding: list[tuple[float, int, Any]] = field(default_factory=list)  # tables, by the end of their sequence
    waits: list[float] = field(default_factory=list)

    def queued(self, now: float) -> int:
        while self.queue and self.queue[0][0] <= now:
            heapq.heappop(self.queue)
        return sum(count for _, count in self.queue)

    def run(self, arrival: Arrival, number: int) -> tuple[int, int]:
        """Tokens that the cache had, and those that it did not."""
        now, cache, tokens = arrival.at, self.cache, arrival.tokens
        while self.holding and self.holding[0][0] <= now:
            cache.release(heapq.heappop(self.holding)[2])
        chain = cache.chain("", "")
        hit = cache.lookup_prefix(chain, tokens)
        while (table := cache.allocate(hit, len(tokens), len(tokens), 0)) is None:  # it would wait for blocks
            cache.release(heapq.heappop(self.holding)[2])
            hit = cache.lookup_prefix(chain, tokens)
        cached = hit.tokens
        cache.advance(table, chain, tokens, len(tokens))
        computed = len(tokens) - cached
        self.free_at = max(self.free_at, now) + computed / self.prefill_per_s
        heapq.heappush(self.queue, (self.free_at, computed))
        heapq.heappush(self.holding, (self.free_at + arrival.output * DECODE_S, number, table))
        self.cached += cached
        self.computed += computed
        self.output += arrival.output
        self.waits.append(self.free_at - now)
        return cached, computed


def arrivals(path: Path, context: int) -> Iterator[Arrival]:
    with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
        for line in lines:
            entry = json.loads(line)
            output = min(entry["output_length"], context // 2)
            length = min(entry["input_length"], context - output)
            tokens = [place for place in entry["hash_ids"] for _ in range(HASHED)][:length]
            yield Arrival(entry["timestamp"] / 1000, tokens, output)


def simulate(trace: list[Arrival], count: int, blocks: int, prefill_per_s: float, policy: str) -> dict[str, Any]:
    """`blocks` and `prefill_per_s` are of each replica."""
    secret = draw_secret()
    now = [0.0]
    replicas = [
        Replica(
            f"replica/{place}",
            CacheManager([CacheGroup(window=0, layers=())], [blocks + 1], HASHED, True, secret=secret),
            PrefixTracker(blocks, HASHED), prefill_per_s, RecentWork(lambda: now[0]),
        )
        for place in range(count)
    ]  # fmt: skip
    spent = 0.0
    for number, arrival in enumerate(trace):
        now[0] = arrival.at
        begun = time.perf_counter()
        keys = prompt_keys(secret, "", "", arrival.tokens, HASHED)
        predicted = [one.tracker.cached_tokens(keys, len(arrival.tokens)) for one in replicas]
        if policy == "round robin":
            chosen = number % count
        else:
            candidates = [
                Candidate(
                    name=one.name, model="m", queued_tokens=one.queued(arrival.at), recent_tokens=one.recent.tokens,
                    cached_tokens=expected, prefix_trusted=one.tracker.trusted, prefill_per_s=prefill_per_s,
                )
                for one, expected in zip(replicas, predicted, strict=True)
            ]  # fmt: skip
            decision = decide(Demand(prompt_tokens=len(arrival.tokens)), candidates, policy)
            chosen = next(place for place, one in enumerate(replicas) if one.name == decision.chosen)
        replica = replicas[chosen]
        replica.tracker.add(keys)
        spent += time.perf_counter() - begun
        found, computed = replica.run(arrival, number)
        replica.tracker.correct(predicted[chosen], found)
        replica.recent.add(computed + arrival.output)
    for one in replicas:
        one.cache.check_integrity()
    return summary(replicas, spent / len(trace))


def summary(replicas: list[Replica], decision_s: float) -> dict[str, Any]:
    work = [one.computed + one.output for one in replicas]
    requests = [len(one.waits) for one in replicas]
    waits = sorted(wait for one in replicas for wait in one.waits)
    return {
        "cached_share": sum(one.cached for one in replicas) / sum(one.cached + one.computed for one in replicas),
        "load_max_over_mean": max(work) * len(work) / sum(work),
        "requests_max_over_mean": max(requests) * len(requests) / sum(requests),
        "ttft_p50_s": waits[len(waits) // 2],
        "ttft_p95_s": waits[math.ceil(0.95 * len(waits)) - 1],
        "decision_us": decision_s * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=800_000, help="KV cache of each replica, in tokens")
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--prefill", type=float, default=10_000.0, help="tokens per second of each replica")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    trace = list(arrivals(options.trace, options.context))
    count, blocks = options.replicas, options.tokens // HASHED
    runs: dict[str, Callable[[], dict[str, Any]]] = {
        "one": lambda: simulate(trace, 1, count * blocks, count * options.prefill, "load")
    } | {
        policy: lambda policy=policy: simulate(trace, count, blocks, options.prefill, policy)  # type: ignore[misc]
        for policy in ("round robin", "load", "prefix")
    }
    results = {name: run() for name, run in runs.items()}
    print(f"{len(trace)} requests, {count} replicas of {options.tokens} tokens, context {options.context}")
    print(f"{'':12} cached  of one  load max/mean  requests max/mean  TTFT p50, p95 s  decision µs")
    for name, row in results.items():
        share = row["cached_share"]
        print(
            f"{name:12} {share:6.3f} {share / results['one']['cached_share']:7.3f} {row['load_max_over_mean']:14.3f}"
            f" {row['requests_max_over_mean']:18.3f} {row['ttft_p50_s']:9.2f} {row['ttft_p95_s']:5.2f}"
            f" {row['decision_us']:12.0f}"
        )
    if options.json is not None:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
