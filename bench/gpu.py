"""Penstock on one GPU, row by row beside vLLM and the physical limit.

    python bench/gpu.py [--only decode] [--model 8b] [--budget 300] [--start-up] [--quantize fp8] [--kv-dtype fp8]
    python bench/gpu.py --deterministic

Shapes of Llama-3.1-8B and Qwen3-0.6B, random weights, bf16 unless they are rounded at load (`--quantize`), random token
ids, fixed output lengths, greedy unless noted, prefix caching on, up to 512 sequences, context 20480. Decode time per
step is (time for N + 1 tokens - time for 1 token) / N, best of 2 or 3. vLLM's figures and the limits (`gpu_targets.py`)
were measured on an H200; on another GPU the ratios mean nothing. Results are merged into bench/results/gpu-h200.json,
so several runs can measure the rows; those with --deterministic into gpu-h200-deterministic.json.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from gpu_targets import CONFIGS, MIXED, TARGETS

RESULTS = Path(__file__).parent / "results"
CONTEXT = 20480


class Variant(NamedTuple):
    """A model, and the types of its weights and its KV cache."""

    model: str
    quantize: str | None = None
    kv_dtype: str = "auto"
    deterministic: bool = False

    @property
    def label(self) -> str:
        """As TARGETS has it."""
        weights = self.quantize or ("bf16" if self.kv_dtype != "auto" else "")
        cache = "" if self.kv_dtype == "auto" else f"{self.kv_dtype} KV"
        return f"{self.model} {' + '.join(part for part in (weights, cache) if part)}".strip()

    @property
    def settings(self) -> dict[str, Any]:
        types = {"quantize": self.quantize, "kv_dtype": self.kv_dtype, "deterministic": self.deterministic}
        return {"load_format": "dummy", "context": CONTEXT, "device": "cuda", **types}


READY = """
import json, sys
from penstock import LLM
from penstock.system.ownership import claim_process
claim_process()
LLM(sys.argv[1], **json.loads(sys.argv[2]))
print("ready", flush=True)
"""


class Bench:
    """One loaded model; every method measures one row."""

    def __init__(self, folder: str, variant: Variant) -> None:
        from penstock import LLM
        from penstock.system.ownership import claim_process

        claim_process()  # as an engine process does
        self.llm = LLM(folder, **variant.settings)
        self.random = random.Random(0)
        self.go([self.tokens(64)], [8])

    def tokens(self, count: int) -> list[int]:
        return [self.random.randrange(10, 100000) for _ in range(count)]

    def prompts(self, count: int, length: int) -> list[list[int]]:
        return [self.tokens(length) for _ in range(count)]

    def go(self, prompts: list[list[int]], lengths: list[int], temperature: float = 0.0) -> float:
        """Seconds of one call."""
        from penstock import SamplingParams

        params = [SamplingParams(temperature=temperature, max_tokens=n, ignore_eos=True) for n in lengths]
        start = time.perf_counter()
        results = self.llm.generate(prompts, params, progress=False)
        seconds = time.perf_counter() - start
        assert [len(result.tokens) for result in results] == lengths
        return seconds

    def decode(self, batch: int, context: int) -> float:
        new, times = (256, 3) if batch == 1 else (128, 2)
        first = min(self.go(self.prompts(batch, context), [1] * batch) for _ in range(times))
        all_ = min(self.go(self.prompts(batch, context), [new + 1] * batch) for _ in range(times))
        return (all_ - first) / new * 1e3

    def prefill(self, count: int) -> float:
        return min(self.go([self.tokens(count)], [1]) for _ in range(3)) * 1e3

    def prefix_hit(self) -> float:
        prefix = self.tokens(8192)
        self.go([prefix + self.tokens(16)], [1])
        return min(self.go([prefix + self.tokens(16)], [1]) for _ in range(3)) * 1e3

    def mixed(self, temperature: float) -> float:
        sizes, lengths = MIXED
        return sum(lengths) / self.go([self.tokens(size) for size in sizes], lengths, temperature)

    def throughput(self) -> float:
        return 256_000 / self.go(self.prompts(1000, 512), [256] * 1000)

    def rows(self) -> Iterator[tuple[str, Callable[[], float]]]:
        for context in (128, 4096):
            yield f"decode 1, context {context}: ms", lambda c=context: self.decode(1, c)  # type: ignore[misc]
        for count in (1024, 4096, 16384):
            yield f"prefill {count}: ms", lambda n=count: self.prefill(n)  # type: ignore[misc]
        yield "prefix hit 8192 + 16: ms", self.prefix_hit
        for batch in (8, 32, 64, 128, 256):
            for context in (512, 2048) if batch <= 128 else (512,):
                row = f"decode {batch}, context {context}: ms"
                yield row, lambda b=batch, c=context: self.decode(b, c)  # type: ignore[misc]
        for temperature in (0.0, 0.6):
            row = f"256 mixed, temperature {temperature}: tok/s"
            yield row, lambda t=temperature: self.mixed(t)  # type: ignore[misc]
        yield "1000 of 512 in, 256 out: tok/s", self.throughput


def start_up(folder: str, variant: Variant) -> Iterator[tuple[str, float]]:
    """Process start to ready, twice, with empty compile caches at first: of kernels, ours and cuDNN's, and of Python's
    modules."""
    with tempfile.TemporaryDirectory() as cache:
        for row in ("start, no compile cache: s", "start, second: s"):
            command = [sys.executable, "-c", READY, folder, json.dumps(variant.settings)]
            caches = {
                "TRITON_CACHE_DIR": f"{cache}/triton",
                "CUDA_CACHE_PATH": f"{cache}/cuda",
                "PENSTOCK_CACHE": cache,
            }
            start = time.perf_counter()
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | caches) as process:
                assert process.stdout is not None
                told = process.stdout.readline()
                seconds = time.perf_counter() - start
            assert told == "ready\n", f"it did not start: {process.returncode}"
            yield row, seconds


def entry(label: str, row: str, value: float) -> dict[str, Any]:
    target = TARGETS[label][row]

    def ratio(other: float | None) -> float | None:
        """Above 1: faster."""
        if other is None:
            return None
        return round(value / other if row.endswith("tok/s") else other / value, 3)

    return {
        "row": f"{label}: {row}",
        "penstock": round(value, 3),
        "vllm": target.vllm,
        "limit": None if target.limit is None else round(target.limit, 2),
        "ratio_vs_vllm": ratio(target.vllm),
        "ratio_vs_limit": ratio(target.limit),
    } | ({} if target.goal is None else {"goal": target.goal, "ratio_vs_goal": ratio(target.goal)})


def save(entries: list[dict[str, Any]], file: Path) -> None:
    """Merge into the existing file; rows keep the order of TARGETS."""
    import torch

    import penstock

    known = json.loads(file.read_text())["rows"] if file.exists() else []
    by_row = {one["row"]: one for one in (*known, *entries)}
    order = [f"{label}: {row}" for label, rows in TARGETS.items() for row in rows]
    document = {
        "chip": torch.cuda.get_device_name(),
        "versions": {"penstock": penstock.__version__, "torch": torch.__version__, "vllm": "0.26.0"},
        "date": datetime.now(UTC).date().isoformat(),
        "rows": [by_row[row] for row in order if row in by_row],
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")


def show(one: dict[str, Any]) -> None:
    others = [
        f"{name} {one[key]:>8.2f} ({one[ratio]:.2f})"
        for name, key, ratio in (
            ("vLLM", "vllm", "ratio_vs_vllm"),
            ("limit", "limit", "ratio_vs_limit"),
            ("goal", "goal", "ratio_vs_goal"),
        )
        if one.get(key) is not None
    ]
    print(f"{one['row']:<48} {one['penstock']:>10.2f}  {'  '.join(others)}", flush=True)


def measure(variant: Variant, folder: str, only: str, deadline: float, *, starts: bool) -> Iterator[dict[str, Any]]:
    label = variant.label
    if starts:
        for row, value in start_up(folder, variant):
            yield entry(label, row, value)
    bench = Bench(folder, variant)
    for row, take in bench.rows():
        if only in row and row in TARGETS[label] and time.monotonic() < deadline:
            yield entry(label, row, take())
    bench.llm.check_integrity()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--model", choices=list(CONFIGS), help="one of the two shapes")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no further row starts")
    parser.add_argument("--start-up", action="store_true", help="also time the start, cold and warm")
    parser.add_argument("--deterministic", action="store_true", help="with the engine's setting of that name")
    parser.add_argument("--quantize", help="round weights at load: fp8, int8, int4")
    parser.add_argument("--kv-dtype", default="auto", help="type of the KV cache")
    arguments = parser.parse_args()
    if arguments.model is None:  # one process each: a model leaves its memory only with its process
        for name in CONFIGS:
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--model", name], check=True)
        return
    variant = Variant(arguments.model, arguments.quantize, arguments.kv_dtype, arguments.deterministic)
    deadline = time.monotonic() + arguments.budget
    if variant.label not in TARGETS:
        parser.error(f"there are no rows for {variant.label}: {', '.join(TARGETS)}")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIGS[variant.model]))
        file = RESULTS / f"gpu-h200{'-deterministic' if variant.deterministic else ''}.json"
        for one in measure(variant, folder, arguments.only, deadline, starts=arguments.start_up):
            show(one)
            save([one], file)


if __name__ == "__main__":
    main()
