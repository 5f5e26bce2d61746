"""LoRA adapters on a CPU: what they cost the streams that have one, and those that have none.

    python bench/lora.py [--model smollm2] [--rank 16] [--streams 1,8,32] [--adapters 1,32] [--steps 40] [--rounds 5]
                         [--arrivals 10] [--threads 2] [--cpu-time] [--json FILE]

Random adapters on all seven projections of every layer are written to a temporary folder. One engine, driven step by
step, decodes so many streams at a time:

    base      before any adapter was loaded
    unused    without adapters, once some are loaded
    N         with N different adapters, in turns over the streams

`unused` and the adapters take turns in each round; a figure is the best round's, in tokens per second, and the share of
base. `bound` is the share that reading alone would leave: the bytes of the adapters of a step, at the speed at which
this machine reads memory with as many threads. Then, beside streams without adapters, sequences arrive, in turns with
an adapter that is on the disk only (cold), with one in memory (warm), without one, and none at all: the longest time
between two tokens of the others, and the time to the first token of the one that arrives. An arrival lengthens a step
by its own prompt; `cold_less_warm`, by pairs, is what the loading adds to that.

With --cpu-time and --threads 1, seconds are CPU time of the process (bench/cpu_clock.py); there are no arrivals then.
bench/lora_gpu.py is for GPUs.
"""

from __future__ import annotations

import cpu_clock  # noqa: F401 - before penstock is imported

# isort: split
import argparse
import json
import os
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from penstock import composition, settings
from penstock.engine.loop import EngineLoop
from penstock.flow import Adapter, Cancel, SamplingParams, Submit
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.library import native_library
from penstock.kernels.cpu.packed import Kind, PackedMatrix, allocate
from penstock.startup.adapters import adapter_of
from penstock.store.adapter import open_adapter
from penstock.store.resolve import resolve
from penstock.store.spec import ModelSpec

PROMPT = 16  # tokens
ARRIVAL_STREAMS = 8
ARRIVAL_STEPS = 25  # from one arrival to the next
READ_INPUTS = 576
NUMBERS = count(1)


def write_adapter(folder: Path, spec: ModelSpec, rank: int, seed: int) -> Adapter:
    """In PEFT's format, float16."""
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    sizes = {"q": (hidden, q), "k": (hidden, kv), "v": (hidden, kv), "o": (q, hidden)}
    modules = {f"self_attn.{name}_proj": size for name, size in sizes.items()}
    modules |= {"mlp.gate_proj": (hidden, ffn), "mlp.up_proj": (hidden, ffn), "mlp.down_proj": (ffn, hidden)}
    random, tensors = np.random.default_rng(seed), {}
    for layer in range(spec.num_layers):
        for module, (inputs, outputs) in modules.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            a = random.standard_normal((rank, inputs), dtype=np.float32) / inputs**0.5
            b = random.standard_normal((outputs, rank), dtype=np.float32) * 0.02
            tensors[f"{name}.lora_A.weight"], tensors[f"{name}.lora_B.weight"] = a.astype("<f2"), b.astype("<f2")
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "bias": "none"}
    config["target_modules"] = [module.rpartition(".")[2] for module in modules]
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return adapter_of(folder.name, open_adapter(folder))


class Streams:
    """Sequences that decode until they are stopped."""

    def __init__(self, loop: EngineLoop, adapters: list[Adapter | None], vocab: int, prompt: int = PROMPT) -> None:
        self._loop = loop
        self.ids = [submit(loop, adapter, vocab, prompt=prompt) for adapter in adapters]
        waiting = set(self.ids)
        while waiting:
            waiting -= {delta.id for delta in step(loop)}

    def decode(self, steps: int) -> float:
        """Tokens per second."""
        start = time.perf_counter()
        tokens = sum(len(delta.tokens) for _ in range(steps) for delta in step(self._loop))
        return tokens / (time.perf_counter() - start)

    def stop(self) -> None:
        for id in self.ids:
            self._loop.handle(Cancel(id))
        while self._loop.has_work:
            step(self._loop)


def submit(loop: EngineLoop, adapter: Adapter | None, vocab: int, max_output: int = 4000, prompt: int = PROMPT) -> str:
    number = next(NUMBERS)
    tokens = np.random.default_rng(number).integers(10, vocab, prompt).tolist()
    params = SamplingParams(temperature=0.0)
    loop.handle(Submit(f"s{number}", tokens, params, 0, max_output, number=number, adapter=adapter))
    return f"s{number}"


def step(loop: EngineLoop) -> list[Any]:
    frame = loop.step()
    for delta in frame.deltas if frame is not None else ():
        assert delta.error is None, delta.error
    return frame.deltas if frame is not None else []


def throughput(loop: EngineLoop, spec: ModelSpec, adapters: list[Adapter | None], streams: int, steps: int) -> float:
    running = Streams(loop, [adapters[place % len(adapters)] for place in range(streams)], spec.vocab_size)
    running.decode(3)
    rate = running.decode(steps)
    running.stop()
    return rate


def read_speed(threads: int) -> float:
    """Bytes per second that the products of one token read of float16 weights, with so many threads."""
    rows = 1 << 18
    matrix = PackedMatrix([allocate(Kind.F16, rows, READ_INPUTS, Arena())], READ_INPUTS)
    for segment in matrix.segments:
        segment.codes.fill(0)  # memory is there once it is written
    x, out = np.ones(READ_INPUTS, dtype=np.float32), np.empty(rows, dtype=np.float32)

    def read(part: int) -> None:
        native_library().penstock_linear(
            matrix.address, x.ctypes.data, None, 1, None, out.ctypes.data, rows, 0, part, threads
        )

    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(8):
            start = time.perf_counter()
            list(pool.map(read, range(threads)))
            best = min(best, time.perf_counter() - start)
    return matrix.num_bytes / best


def watch(loop: EngineLoop, spec: ModelSpec, kinds: dict[str, list[Adapter | None]], count: int) -> dict[str, Any]:
    """Streams without adapters, beside which sequences of each kind arrive in turns; a kind without any is a time in
    which none does. In milliseconds: the longest time between two tokens of the streams after an arrival, and the time
    to the first token of the one that arrives."""
    running = Streams(loop, [None] * ARRIVAL_STREAMS, spec.vocab_size)
    gaps: dict[str, list[float]] = {kind: [] for kind in kinds}
    firsts: dict[str, list[float]] = {kind: [] for kind in kinds}
    for number in range(count):
        for kind in sorted(kinds, key=lambda kind: (list(kinds).index(kind) + number) % len(kinds)):
            start = time.perf_counter()
            arrived = submit(loop, kinds[kind][number], spec.vocab_size, max_output=4) if kinds[kind] else None
            times, seen = [start], arrived is None
            while len(times) <= ARRIVAL_STEPS or not seen:
                ids = {delta.id for delta in step(loop)}
                if running.ids[0] in ids:
                    times.append(time.perf_counter())
                if arrived in ids and not seen:
                    seen = True
                    firsts[kind].append(1e3 * (time.perf_counter() - start))
            gaps[kind].append(1e3 * max(after - before for before, after in pairwise(times)))
    running.stop()
    result = {kind: spread("gap", gaps[kind]) | spread("first_token", firsts[kind]) for kind in kinds}
    added = [cold - warm for cold, warm in zip(gaps["cold"], gaps["warm"], strict=True)]
    later = [cold - warm for cold, warm in zip(firsts["cold"], firsts["warm"], strict=True)]
    return result | {"cold_less_warm": spread("gap", added) | spread("first_token", later)}


def spread(name: str, found: list[float]) -> dict[str, float]:
    return {f"{name}_median_ms": statistics.median(found), f"{name}_max_ms": max(found)} if found else {}


def drop_from_page_cache(adapter: Adapter) -> None:
    """So that it is read from the disk."""
    with (Path(adapter.path) / "adapter_model.safetensors").open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--adapters", default="1,32")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--arrivals", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cpu-time", action="store_true")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    streams, kinds = ([int(one) for one in text.split(",")] for text in (asked.streams, asked.adapters))
    spec = resolve(asked.model).spec
    with tempfile.TemporaryDirectory() as folder:
        total = max(kinds) + asked.arrivals
        made = [write_adapter(Path(folder) / f"a{seed}", spec, asked.rank, seed) for seed in range(total)]
        options = {"model": asked.model, "threads": asked.threads, "kv_memory": "1GiB", "adapter_memory": "2GiB"}
        loop, _ = composition.engine_loop(settings.load({**options, "prefix_caching": False}))
        result = measure(loop, spec, made, streams, kinds, asked)
    print(json.dumps(result, indent=1))
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


def measure(
    loop: EngineLoop, spec: ModelSpec, made: list[Adapter], streams: list[int], kinds: list[int], asked: Any
) -> dict[str, Any]:
    base = {n: max(throughput(loop, spec, [None], n, asked.steps) for _ in range(asked.rounds)) for n in streams}
    used: list[Adapter | None] = [*made[: max(kinds)]]
    throughput(loop, spec, used, max(kinds), 1)  # loads all of them
    takes = max(one["bytes"] for one in loop.queries["adapters"]())  # each
    speed, rows = read_speed(asked.threads), []
    decoding: dict[str, list[Adapter | None]] = {"unused": [None]} | {f"{kind}": used[:kind] for kind in kinds}
    for n in streams:
        rates: dict[str, list[float]] = {name: [] for name in decoding}
        for _ in range(asked.rounds):
            for name, adapters in decoding.items():
                rates[name].append(throughput(loop, spec, adapters, n, asked.steps))
        best = {"base": base[n]} | {name: max(found) for name, found in rates.items()}
        unused = max(base[n], best["unused"])
        read_s = {f"{kind}": min(kind, n) * takes / speed for kind in kinds}
        rows.append(
            {
                "streams": n,
                "tokens_per_s": best,
                "share": {name: best[name] / unused for name in best},
                "bound": {name: 1 / (1 + seconds * unused / n) for name, seconds in read_s.items()},
            }
        )
    result = {
        "model": spec.name,
        "rank": asked.rank,
        "threads": asked.threads,
        "cpu_time": asked.cpu_time,
        "adapter_bytes": takes,
        "read_gb_per_s": speed / 1e9,
        "decode": rows,
    }
    if asked.cpu_time:
        return result
    cold = made[max(kinds) :]
    for adapter in cold:
        drop_from_page_cache(adapter)
    arriving: dict[str, list[Adapter | None]] = {"cold": [*cold], "warm": used[:1] * len(cold)}
    arriving |= {"without_adapter": [None] * len(cold), "none": []}
    return result | {"arrivals": watch(loop, spec, arriving, len(cold))}


if __name__ == "__main__":
    main()
