"""LoRA adapters on one GPU: what they cost a step, and what the arrival of one costs the streams beside.

    python bench/lora_gpu.py [--model 8b] [--rank 16] [--adapters 32] [--arrivals 10] [--steps 100] [--json FILE]

Shape of Llama-3.1-8B, random weights, bf16, greedy, no prefix cache. Adapters are on all seven projections. Time per
step, in ms, of streams that all decode:

    none      an engine without memory for adapters
    unused    an engine that has adapters in memory, and no stream has one
    one       every stream has the same adapter
    mixed     so many different ones, in turns over the streams

vLLM 0.26's figures were measured on an H200. Then, as in bench/lora.py, sequences arrive beside 8 streams: with an
adapter that is on the disk only, which makes room for itself (cold), with one in memory (warm), without one, and none.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import torch

from gpu import CONFIGS
from lora import Streams, drop_from_page_cache, step, watch, write_adapter
from penstock import composition, settings
from penstock.engine.loop import EngineLoop
from penstock.flow import Adapter
from penstock.store.resolve import resolve
from penstock.system.ownership import claim_process

# (streams, context) -> vLLM 0.26's ms per step: LoRA off, on and unused, one adapter, 32 adapters
VLLM = {
    (1, 128): (4.90, 4.96, 7.34, 7.34),
    (8, 512): (5.09, 5.14, 7.29, 10.1),
    (32, 512): (5.74, 5.92, 7.98, 20.4),
    (128, 512): (8.57, 9.14, 13.4, 23.5),
    (128, 2048): (14.4, 15.5, 20.3, 44.6),
}


def named_anew(first: Adapter, count: int) -> list[Adapter]:
    """Adapters with the same numbers, which an engine does not know: it has each of them apart."""
    return [msgspec.structs.replace(first, name=f"a{number}") for number in range(count)]


def copies(first: Adapter, count: int) -> list[Adapter]:
    """Adapters in files of their own."""
    folders = [Path(first.path).parent / f"copy{number}" for number in range(count)]
    for folder in folders:
        shutil.copytree(first.path, folder)
    return [msgspec.structs.replace(first, name=folder.name, path=str(folder)) for folder in folders]


def engine(folder: str, **options: Any) -> EngineLoop:
    loaded = settings.load(
        {"model": folder, "load_format": "dummy", "device": "cuda", "context": 4096, "prefix_caching": False, **options}
    )
    loop, facts = composition.engine_loop(loaded)
    print(f"started in {facts['start_s']:.1f} s: {facts['start_parts_s']}", flush=True)
    return loop


def step_ms(loop: EngineLoop, owners: list[Adapter | None], context: int, vocab: int, steps: int) -> float:
    running = Streams(loop, owners, vocab, context)
    for _ in range(5):
        step(loop)
    best = float("inf")
    for _ in range(3):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(steps // 3):
            step(loop)
        best = min(best, (time.perf_counter() - start) / (steps // 3))
    running.stop()
    return 1e3 * best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=list(CONFIGS), default="8b")
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--adapters", type=int, default=32)
    parser.add_argument("--arrivals", type=int, default=10)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--streams", default="1,8,32,128", help="numbers of streams to measure")
    parser.add_argument("--most", type=int, default=1 << 20, help="tokens of context of all streams, at most")
    parser.add_argument("--kinds", default="unused,one,mixed")
    parser.add_argument("--without", action="store_true", help="also an engine without memory for adapters")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    claim_process()  # as an engine process does
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model"
        model.mkdir()
        (model / "config.json").write_text(json.dumps(CONFIGS[asked.model]))
        result = measure(str(model), Path(folder), asked)
    print(json.dumps(result, indent=1))
    if asked.json is not None:
        asked.json.write_text(json.dumps(result, indent=1) + "\n")


def rows_of(asked: argparse.Namespace) -> list[tuple[int, int]]:
    streams = [int(one) for one in asked.streams.split(",")]
    return [row for row in VLLM if row[0] in streams and row[0] * row[1] <= asked.most]


def measure(model: str, folder: Path, asked: argparse.Namespace) -> dict[str, Any]:
    spec = resolve(model, weights=False).spec
    vocab, rows, steps = spec.vocab_size, rows_of(asked), asked.steps
    none: dict[tuple[int, int], float] = {}
    if asked.without:
        loop = engine(model)
        none = {row: step_ms(loop, [None] * row[0], row[1], vocab, steps) for row in rows}
        print(none, flush=True)
        loop.backend.release_memory()
        del loop
        gc.collect()
        torch.cuda.empty_cache()
    begun = time.perf_counter()
    first = write_adapter(folder / "first", spec, asked.rank, 0)
    cold = copies(first, asked.arrivals)
    print(f"adapters of {first.num_bytes} bytes written in {time.perf_counter() - begun:.1f} s", flush=True)
    used: list[Adapter | None] = [*named_anew(first, asked.adapters)]
    loop = engine(model, adapter_memory=str(int(first.num_bytes * (asked.adapters + 0.5))))
    begun = time.perf_counter()
    Streams(loop, used, vocab).stop()
    print(f"{len(used)} adapters loaded in {time.perf_counter() - begun:.1f} s", flush=True)
    table = []
    for row in rows:
        streams, context = row
        kinds: dict[str, list[Adapter | None]] = {"unused": [None], "one": used[:1], "mixed": used}
        found = {
            kind: step_ms(loop, [owners[place % len(owners)] for place in range(streams)], context, vocab, steps)
            for kind, owners in kinds.items()
            if kind in asked.kinds.split(",")
        }
        vllm = dict(zip(("none", "unused", "one", "mixed"), VLLM[row], strict=True))
        table.append({"streams": streams, "context": context, "ms": {"none": none.get(row)} | found, "vllm": vllm})
        print(table[-1], flush=True)
    for adapter in cold:
        drop_from_page_cache(adapter)
    arriving: dict[str, list[Adapter | None]] = {"cold": [*cold], "warm": used[-1:] * len(cold)}
    arriving |= {"without_adapter": [None] * len(cold), "none": []}
    return {
        "chip": torch.cuda.get_device_name(),
        "model": asked.model,
        "rank": asked.rank,
        "adapter_bytes": first.num_bytes,
        "decode": table,
        "arrivals": watch(loop, spec, arriving, len(cold)),
    }


if __name__ == "__main__":
    main()
