"""Penstock on one GPU, row by row beside vLLM and the physical limit.

    python bench/gpu.py [--only decode] [--model 8b] [--budget 300] [--start-up] [--deterministic]

Shapes of Llama-3.1-8B and Qwen3-0.6B, random weights, bf16, random token ids, fixed output lengths, greedy unless
noted, prefix caching on, up to 512 sequences, context 20480. Decode time per step is (time for N + 1 tokens - time
for 1 token) / N, best of 2 or 3. vLLM's figures and the limits were measured on an H200; on another GPU the ratios mean
nothing. Results are merged into bench/results/gpu-h200.json, so several runs can measure the rows; those with
--deterministic into gpu-h200-deterministic.json.
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
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
CONTEXT = 20480
COMMON = {"torch_dtype": "bfloat16", "hidden_act": "silu", "attention_bias": False, "head_dim": 128}
CONFIGS: dict[str, dict[str, Any]] = {
    "8b": COMMON
    | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "tie_word_embeddings": False,
        "bos_token_id": 128000,
        "eos_token_id": 128001,
        "mlp_bias": False,
    },
    "0.6b": COMMON
    | {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
    },
}


BYTES_PER_S, OPERATIONS_PER_S = 4.18e12, 660e12  # measured: a product of one row, and a whole model's prefill
SEQUENCES = 512  # concurrent


def mixed_sizes() -> tuple[list[int], list[int]]:
    """Lengths of the 256 prompts and outputs, uniform 100 to 1024."""
    drawn = random.Random(0)
    prompts = []
    for _ in range(256):
        prompts.append(drawn.randint(100, 1024))
        for _ in range(prompts[-1]):
            drawn.randrange(10, 100000)
    return prompts, [drawn.randint(100, 1024) for _ in range(256)]


MIXED = mixed_sizes()


def load_limit(model: str, prompts: list[int], answers: list[int]) -> float:
    """Output tokens per second if prompts cost nothing but products, each drawn token the reading of its KV, and each
    step the reading of the weights; as many steps as the longest answer has tokens, per 512 requests."""
    shape = CONFIGS[model]
    hidden, layers = shape["hidden_size"], shape["num_hidden_layers"]
    kv = shape["num_key_value_heads"] * shape["head_dim"]
    attention = hidden * (2 * shape["num_attention_heads"] * shape["head_dim"] + 2 * kv)
    weights = layers * (attention + 3 * hidden * shape["intermediate_size"])
    read = sum(out * (size + out / 2) for size, out in zip(prompts, answers, strict=True)) * layers * kv * 4
    steps = max(answers) * -(-len(prompts) // SEQUENCES)
    read += steps * 2 * (weights + hidden * shape["vocab_size"])
    seconds: float = read / BYTES_PER_S + 2 * weights * sum(prompts) / OPERATIONS_PER_S
    return sum(answers) / seconds


@dataclass(frozen=True)
class Target:
    vllm: float
    limit: float | None = None


# row -> vLLM 0.26.0's figure, and the limit where there is one: (weights + KV bytes read) / 4.18 TB/s; of whole loads,
# what `load_limit` says
TARGETS: dict[str, dict[str, Target]] = {
    "8b": {
        "start, no compile cache: s": Target(96),
        "start, second: s": Target(65),
        "decode 1, context 128: ms": Target(4.91, 3.60),
        "decode 1, context 4096: ms": Target(5.04, 3.72),
        "prefill 1024: ms": Target(27.9),
        "prefill 4096: ms": Target(94.8),
        "prefill 16384: ms": Target(482.0),
        "prefix hit 8192 + 16: ms": Target(15.6),
        "decode 8, context 512: ms": Target(5.09, 3.73),
        "decode 8, context 2048: ms": Target(5.54, 4.12),
        "decode 32, context 512: ms": Target(5.75, 4.17),
        "decode 32, context 2048: ms": Target(7.27, 5.71),
        "decode 64, context 512: ms": Target(6.68, 4.74),
        "decode 64, context 2048: ms": Target(9.70, 7.83),
        "decode 128, context 512: ms": Target(8.52, 5.90),
        "decode 128, context 2048: ms": Target(14.63, 12.07),
        "decode 256, context 512: ms": Target(13.71, 8.21),
        "256 mixed, temperature 0.0: tok/s": Target(10528, load_limit("8b", *MIXED)),
        "256 mixed, temperature 0.6: tok/s": Target(10514, load_limit("8b", *MIXED)),
        "1000 of 512 in, 256 out: tok/s": Target(10290, load_limit("8b", [512] * 1000, [256] * 1000)),
    },
    "0.6b": {
        "start, no compile cache: s": Target(100),
        "start, second: s": Target(58),
        "decode 1, context 128: ms": Target(1.98, 0.29),
        "decode 1, context 4096: ms": Target(1.84, 0.40),
        "prefill 1024: ms": Target(17.1),
        "prefill 4096: ms": Target(19.4),
        "prefill 16384: ms": Target(87.8),
        "prefix hit 8192 + 16: ms": Target(9.9),
        "decode 8, context 512: ms": Target(2.21, 0.41),
        "decode 8, context 2048: ms": Target(2.12, 0.75),
        "decode 32, context 512: ms": Target(2.57, 0.79),
        "decode 32, context 2048: ms": Target(3.61, 2.14),
        "decode 64, context 512: ms": Target(3.85, 1.30),
        "decode 64, context 2048: ms": Target(5.20, 3.99),
        "decode 128, context 512: ms": Target(6.07, 2.31),
        "decode 128, context 2048: ms": Target(8.98, 7.70),
        "decode 256, context 512: ms": Target(8.20, 4.33),
        "256 mixed, temperature 0.0: tok/s": Target(23386, load_limit("0.6b", *MIXED)),
        "256 mixed, temperature 0.6: tok/s": Target(22019, load_limit("0.6b", *MIXED)),
        "1000 of 512 in, 256 out: tok/s": Target(30290, load_limit("0.6b", [512] * 1000, [256] * 1000)),
    },
}

READY = """
import sys
from penstock import LLM
from penstock.system.ownership import claim_process
claim_process()
LLM(sys.argv[1], load_format="dummy", context=int(sys.argv[2]), device="cuda", deterministic=sys.argv[3] == "True")
print("ready", flush=True)
"""


class Bench:
    """One loaded model; every method measures one row."""

    def __init__(self, folder: str, deterministic: bool) -> None:
        from penstock import LLM
        from penstock.system.ownership import claim_process

        claim_process()  # as an engine process does
        self.llm = LLM(folder, load_format="dummy", context=CONTEXT, device="cuda", deterministic=deterministic)
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


def start_up(folder: str, deterministic: bool) -> Iterator[tuple[str, float]]:
    """Process start to ready, twice, with empty compile caches at first: of kernels, ours and cuDNN's, and of Python's
    modules."""
    with tempfile.TemporaryDirectory() as cache:
        for row in ("start, no compile cache: s", "start, second: s"):
            command = [sys.executable, "-c", READY, folder, str(CONTEXT), str(deterministic)]
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


def entry(model: str, row: str, value: float) -> dict[str, Any]:
    target = TARGETS[model][row]
    more_is_better = row.endswith("tok/s")
    return {
        "row": f"{model}: {row}",
        "penstock": round(value, 3),
        "vllm": target.vllm,
        "limit": None if target.limit is None else round(target.limit, 2),
        "ratio_vs_vllm": round(value / target.vllm if more_is_better else target.vllm / value, 3),
        "ratio_vs_limit": None
        if target.limit is None
        else round(value / target.limit if more_is_better else target.limit / value, 3),
    }


def save(entries: list[dict[str, Any]], file: Path) -> None:
    """Merge into the existing file; rows keep the order of TARGETS."""
    import torch

    import penstock

    known = json.loads(file.read_text())["rows"] if file.exists() else []
    by_row = {one["row"]: one for one in (*known, *entries)}
    order = [f"{model}: {row}" for model, rows in TARGETS.items() for row in rows]
    document = {
        "chip": torch.cuda.get_device_name(),
        "versions": {"penstock": penstock.__version__, "torch": torch.__version__, "vllm": "0.26.0"},
        "date": datetime.now(UTC).date().isoformat(),
        "rows": [by_row[row] for row in order if row in by_row],
    }
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(document, indent=1) + "\n")


def show(one: dict[str, Any]) -> None:
    limit = "" if one["limit"] is None else f"  limit {one['limit']:>7.2f} ({one['ratio_vs_limit']:.2f})"
    print(
        f"{one['row']:<48} {one['penstock']:>10.2f}  vLLM {one['vllm']:>9.2f} ({one['ratio_vs_vllm']:.2f}){limit}",
        flush=True,
    )


def measure(
    model: str, folder: str, only: str, deadline: float, *, starts: bool, deterministic: bool
) -> Iterator[dict[str, Any]]:
    if starts:
        for row, value in start_up(folder, deterministic):
            yield entry(model, row, value)
    bench = Bench(folder, deterministic)
    for row, take in bench.rows():
        if only in row and time.monotonic() < deadline:
            yield entry(model, row, take())
    bench.llm.check_integrity()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="rows whose name contains this")
    parser.add_argument("--model", choices=list(CONFIGS), help="one of the two shapes")
    parser.add_argument("--budget", type=float, default=3600.0, help="seconds after which no further row starts")
    parser.add_argument("--start-up", action="store_true", help="also time the start, cold and warm")
    parser.add_argument("--deterministic", action="store_true", help="with the engine's setting of that name")
    arguments = parser.parse_args()
    model, deadline = arguments.model, time.monotonic() + arguments.budget
    if model is None:  # one process each: a model leaves its memory only with its process
        for name in CONFIGS:
            subprocess.run([sys.executable, __file__, *sys.argv[1:], "--model", name], check=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIGS[model]))
        file = RESULTS / f"gpu-h200{'-deterministic' if arguments.deterministic else ''}.json"
        options = {"starts": arguments.start_up, "deterministic": arguments.deterministic}
        for one in measure(model, folder, arguments.only, deadline, **options):
            show(one)
            save([one], file)


if __name__ == "__main__":
    main()
