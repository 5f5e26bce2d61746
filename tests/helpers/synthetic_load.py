"""Synthetic observe data of a busy server: 64 concurrent requests, 50,000 steps, as the routes of docs/OBSERVE.md
return it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.observe.pipeline_stages import PIPELINE_STAGES

LANES = 64
STEPS = 50_000
STARTED = time.monotonic()
CHUNK = 256  # prompt tokens per step
SERIES = (
    "ttft_us_p50",
    "ttft_us_p95",
    "ttft_us_p99",
    "e2e_us_p50",
    "e2e_us_p95",
    "e2e_us_p99",
    "queue_us_p50",
    "queue_us_p95",
    "inter_token_us_p50",
    "inter_token_us_p95",
    "inter_token_us_p99",
    "tokens_per_s",
    "prompt_tokens_per_s",
    "preemptions",
    "cpu",
    "server_cpu",
    "memory",
    "memory_total",
    "server_memory",
    "running",
    "waiting",
    "kv_use",
    "errors",
    "step_us_mean",
    "prefix_hit_ratio",
    "gpu_utilisation",
)


@dataclass
class Lifetime:
    """Step numbers of one sequence."""

    seq: int
    queued: int
    admitted: int
    first: int  # its first token
    last: int
    prompt: int


class SyntheticLoad:
    def __init__(self, seed: int = 1) -> None:
        draw = random.Random(seed)
        lives: list[Lifetime] = []
        for lane in range(LANES):
            at = 1 + draw.randrange(40) + lane // 8
            while at < STEPS + 4000:
                queued = max(1, at - draw.choice((0, 0, 1, 3, 12)))
                prompt = int(draw.lognormvariate(5.6, 0.9)) + 8
                first = at + -(-prompt // CHUNK) - 1
                last = first + int(draw.lognormvariate(4.6, 0.8)) + 4
                lives.append(Lifetime(0, queued, at, first, last, prompt))
                at = last + 1 + draw.choice((0, 0, 1, 2, 9))
        lives.sort(key=lambda life: life.queued)
        for number, life in enumerate(lives, 1):
            life.seq = number
        self.lives = lives
        self.queued, self.last = (np.array([getattr(life, name) for life in lives]) for name in ("queued", "last"))
        count = STEPS + 4002
        rows, waiting, prefill = (np.zeros(count + 8192, np.int64) for _ in range(3))
        for life in lives:
            rows[life.admitted] += 1
            rows[life.last + 1] -= 1
            waiting[life.queued] += 1
            waiting[life.admitted] -= 1
            prefill[life.admitted : life.first + 1] += CHUNK
        self.rows, self.waiting = np.cumsum(rows)[:count], np.cumsum(waiting)[:count]
        self.us = 9000 + 300 * self.rows + 40 * prefill[:count]
        self.start = np.concatenate([[0], np.cumsum(self.us)[:-1]])
        self.prefill = prefill[:count]

    def window(self, start: int, end: int, columns: int, *, rows: bool = True) -> dict[str, Any]:
        stride = max(1, -(-(end - start + 1) // columns))
        numbers = np.arange(start, end + 1, stride)
        seen = np.nonzero((self.queued <= end) & (self.last >= start))[0] if rows else []
        lives = [self.lives[i] for i in seen]
        column, seq, tokens, kind = [], [], [], []
        marks: list[dict[str, Any]] = []
        for life in lives:
            for place in range(
                max(0, (life.admitted - start) // stride), min(len(numbers), (life.last - start) // stride + 1)
            ):
                number = int(numbers[place])
                column.append(place)
                seq.append(life.seq)
                kind.append(int(number > life.first))
                tokens.append(1 if number > life.first else min(CHUNK, life.prompt))
            for step, name in ((life.admitted, "admitted"), (life.last, "finished")):
                if start <= step <= end:
                    marks.append(
                        {
                            "column": (step - start) // stride,
                            "step": step,
                            "seq": life.seq,
                            "kind": name,
                            "why": None,
                            "cached": None,
                        }
                    )
        pick = lambda values: values[numbers].tolist()  # noqa: E731
        zeros = [0] * len(numbers)
        return {
            "first": 1,
            "last": STEPS,
            "from": start,
            "to": end,
            "stride": stride,
            "steps": {
                "number": numbers.tolist(),
                "start": pick(self.start),
                "us": (self.us[numbers] * stride).tolist(),
                "plan_us": zeros,
                "forward_us": pick(self.us),
                "settle_us": zeros,
                "tokens": pick(self.rows + self.prefill),
                "rows": pick(self.rows),
                "running": pick(self.rows),
                "waiting": pick(self.waiting),
                "held": pick(self.rows * 20),
                "free": pick(4000 - self.rows * 30),
                "cached": pick(self.rows * 10),
                "blocked": ["slot" if waits else None for waits in pick(self.waiting)],
            },
            "rows": {"column": column, "seq": seq, "tokens": tokens, "kind": kind},
            "marks": marks,
            "sequences": {str(life.seq): self._in_window(life) for life in lives},
        }

    def _in_window(self, life: Lifetime) -> dict[str, Any]:
        at = lambda step: int(self.start[step])  # noqa: E731
        return {
            "request": life.seq,
            "id": f"{life.seq:032x}",
            "prompt_tokens": life.prompt,
            "queued_at": at(life.queued),
            "admitted_at": at(life.admitted),
            "first_token_at": at(life.first) + 1,
            "finished_at": at(life.last),
            "finish": "end",
        }

    def summary(self, life: Lifetime, now_step: int) -> dict[str, Any]:
        at = lambda step: int(self.start[step])  # noqa: E731
        done = life.last < now_step
        state = "done" if done else "queued" if life.admitted > now_step else "running"
        output = max(0, min(life.last, now_step) - life.first)
        return {
            "number": life.seq,
            "id": f"{life.seq:032x}",
            "request_id": f"req-{life.seq}",
            "kind": "chat",
            "stream": True,
            "state": state,
            "t": at(life.queued),
            "end": at(life.last) if done else None,
            "prompts": 1,
            "choices": 1,
            "prompt_tokens": life.prompt,
            "cached_tokens": life.prompt // 32 * 16,
            "output_tokens": output,
            "queue_us": at(life.admitted) - at(life.queued) if state != "queued" else None,
            "ttft_us": at(life.first) - at(life.queued) if output else None,
            "e2e_us": at(life.last) - at(life.queued) if done else None,
            "tokens_per_s": 31.5 if output else None,
            "waited_for": "slot",
            "preemptions": 0,
            "finish": "end" if done else None,
            "error": None,
            "seqs": [life.seq],
        }

    def at_step(self, step: int) -> list[Lifetime]:
        return [self.lives[i] for i in np.nonzero((self.queued <= step) & (self.last >= step - 3))[0]]

    def page_map(self, step: int) -> dict[str, Any]:
        draw = random.Random(step)
        runs: list[list[int]] = []
        left, sequences = 65_536, {}
        for life in self.at_step(step):
            for _ in range(24):
                length = draw.randrange(1, 24)
                runs.append([length, draw.choice((1, 1, 1, 2)), life.seq])
                runs.append([draw.randrange(1, 12), draw.choice((0, 3, 3)), 0])
                left -= runs[-1][0] + length
            sequences[str(life.seq)] = {"request": life.seq, "blocks": 80, "tokens": 1270, "waste_tokens": 10}
        runs.append([left, 0, 0])
        of = lambda state: sum(run[0] for run in runs if run[1] == state)  # noqa: E731
        group = {
            "window": 0,
            "total": 65_536,
            "free": of(0),
            "held": of(1) + of(2),
            "shared": of(2),
            "cached": of(3),
            "resting": 0,
            "cell_blocks": 1,
            "runs": runs,
        }
        return {
            "t": int(self.start[step]),
            "block_size": 16,
            "prefix_caching": True,
            "groups": [group],
            "sequences": sequences,
            "fragmentation": {"waste_tokens": 640, "held_tokens_capacity": 81_920, "ratio": 0.008},
            "evictions": {
                "total": 12_345,
                "last_60_s": 45,
                "recent": [{"t": int(self.start[step - i]), "tokens": 16, "depth": i, "hits": 1} for i in range(64)],
            },
            "hits": {"prompt_tokens": 900_000, "hit_tokens": 400_000, "ratio": 0.444},
            "ghosts": 500,
        }


def tree() -> dict[str, Any]:
    draw = random.Random(3)
    nodes: list[dict[str, Any]] = []
    for number in range(400):
        parent = draw.choice(nodes) if nodes and draw.random() < 0.85 else None
        depth = parent["depth"] + parent["blocks"] if parent else 0
        blocks = draw.randrange(1, 12)
        nodes.append(
            {
                "id": f"{number:08x}",
                "parent": parent and parent["id"],
                "depth": depth,
                "blocks": blocks,
                "tokens": blocks * 16,
                "hits": int(draw.expovariate(0.2)),
                "state": draw.choice(("held", "cached", "cached", "evicted")),
                "holders": 1,
                "own": False,
                "idle_s": 1.5,
            }
        )
    return {"nodes": nodes, "total": 1234, "shown": 400}


def history() -> dict[str, Any]:
    draw = random.Random(4)
    return {"interval_s": 3, "t": [n * 3_000_000 for n in range(300)]} | {
        name: [None if name.startswith("gpu") else draw.random() for _ in range(300)] for name in SERIES
    }


def pipeline() -> dict[str, Any]:
    """Every second: 40 requests, 64 steps, 4,000 tokens."""
    seconds = time.monotonic() - STARTED
    path_us = {name: 1000 * (place + 1) for place, name in enumerate(PIPELINE_STAGES)}
    per_s = {
        "requests": 40, "prompt_tokens": 9000, "hit_tokens": 1000, "output_tokens": 4000, "steps": 64, "rows": 4000,
        "step_s": 1, "plan_s": 0.01, "settle_s": 0.01, "prefill_tokens": 8000, "decode_tokens": 4000, "drafted": 1000,
        "accepted": 600, "text_s": 0.1, "writes": 4000, "written_bytes": 800_000,
    }  # fmt: skip
    return {
        "t": round(seconds * 1e6),
        "window_s": 60,
        "requests": 256,
        "open": LANES,
        "stages": [
            {"name": name, "now": LANES, "count": 256, "us_mean": us, "us_p50": us, "us_p95": 3 * us, "refused": 0}
            for name, us in path_us.items()
        ],
        "path_us": path_us,
        "totals": {name: rate * seconds for name, rate in per_s.items()},
        "active": {},
    }


def ticks(made: SyntheticLoad, steps: bool) -> Iterator[dict[str, Any]]:
    """From the last recorded step on, 12 steps at a time."""
    for end in range(STEPS, STEPS + 4000, 12):
        lives = made.at_step(end)
        window = made.window(end - 11, end, 256) | {"last": end} if steps else None
        page = made.page_map(STEPS)["groups"][0]
        stats = {
            "running": int(made.rows[end]),
            "waiting": int(made.waiting[end]),
            "waiting_by_reason": {"slot": int(made.waiting[end])},
            "open": len(lives),
            "kv": [{name: page[name] for name in ("total", "held", "shared", "resting", "cached", "free")}],
            "kv_use": page["held"] / page["total"],
            "tokens_per_s": 1480.0,
            "prompt_tokens_per_s": 3200.0,
            "steps": end,
            "step_us_mean": 28_000,
            "batch_mean": 61.2,
            "preemptions": 3,
            "prefix_hit_tokens": 400_000,
            "prompt_tokens": 900_000,
            "output_tokens": 3_000_000,
            "evictions": 12_345,
            "ttft_us_p50": 180_000,
            "ttft_us_p95": 520_000,
            "errors": 0,
            "gpu": None,
            "ready": True,
            "restarts": 0,
        }
        yield {
            "t": int(made.start[end]),
            "stats": stats,
            "requests": [made.summary(life, end) for life in lives],
            "steps": window,
            "alerts": [],
            "dropped": 0,
        }


def facts(made: SyntheticLoad) -> dict[str, Any]:
    engine = {
        "device": "cpu",
        "dtype": "float32",
        "context": 8192,
        "weights_bytes": 5e8,
        "kv_bytes": 1e9,
        "kv_tokens": 1 << 20,
        "block_size": 16,
        "max_sequences": LANES,
        "step_tokens": 512,
    }
    measured = dict.fromkeys(
        ("prefill_tokens_per_s", "decode_tokens_per_s", "ttft_us_p50", "ttft_us_p95", "tokens_per_s_peak", "step_cost")
    )
    return {
        "version": "0",
        "started_unix": 1_700_000_000.0,
        "now": int(made.start[STEPS]),
        "ready": True,
        "events": True,
        "keep_texts": False,
        "keys": False,
        "model": {"name": "recorded", "context": 8192, "vocab_size": 49_152},
        "engine": engine,
        "settings": {},
        "sampling": {},
        "measured": {**measured, "decode_by_batch": []},
        "scopes": [],
        "replica": 0,
        "models": [{"name": "recorded", "state": "ready", "replicas": [{"replica": 0, "state": "ready"}]}],
    }


def detail(made: SyntheticLoad, life: Lifetime) -> dict[str, Any]:
    summary = made.summary(life, STEPS)
    at = lambda step: int(made.start[step])  # noqa: E731
    end = summary["end"] or at(STEPS)
    cuts = [
        ("queue", at(life.queued), at(life.admitted)),
        ("prefill", at(life.admitted), at(life.first)),
        ("decode", at(life.first), end),
    ]
    spans = [
        {
            "stage": "queue",
            "seq": life.seq,
            "start": cuts[0][1],
            "end": cuts[0][2],
            "step": None,
            "tokens": None,
            "count": 1,
        }
    ]
    for step in range(life.admitted, min(life.last, STEPS) + 1):
        stage = "decode" if step > life.first else "prefill"
        spans.append(
            {
                "stage": stage,
                "seq": life.seq,
                "start": at(step),
                "end": at(step + 1),
                "step": step,
                "tokens": 1,
                "count": 1,
            }
        )
        spans.append(
            {
                "stage": "write",
                "seq": None,
                "start": at(step + 1),
                "end": at(step + 1) + 90,
                "step": None,
                "tokens": None,
                "count": 1,
            }
        )
    return summary | {
        "stages": [{"name": name, "start": start, "end": stop, "us": stop - start} for name, start, stop in cuts],
        "spans": spans,
        "totals": {},
        "sequences": [],
        "events": [],
        "params": {},
        "context": None,
        "route": [],
        "safety": [],
        "slow_client": False,
        "texts": None,
    }
