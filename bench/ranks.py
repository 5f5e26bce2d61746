"""Tensor parallelism, as far as one GPU shows it: what each rank computes, and what the machinery of ranks costs.

    python bench/ranks.py compute [--model 8b] [--degree 1 --degree 2 ...] [--json FILE]
    python bench/ranks.py alone [--model 8b] [--json FILE]

compute  the steps of rank 0 of so many, with its share of the weights and heads, and no other rank: sums over ranks are
         left out, all else is launched. Beside it the bytes that each rank sends in a step, and how long NVLink takes
         for those at its data-sheet rate. That is computed, not measured, and leaves out what each collective takes
         however small it is
alone    a whole engine, as it is and as the only rank of an NCCL group: products that are not fused with the residual,
         tokens handed out, logits gathered and messages to other ranks encoded, all in the same CUDA graphs
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import torch

from gpu import CONFIGS

NVLINK = 450e9  # bytes per second that a GPU of the HGX H200 sends to the others (NVLink 4, data sheet)
BLOCK, CONTEXT, LENGTH, PROMPT = 16, 5120, 512, 4096
STREAMS = (1, 32, 128)


def milliseconds(work: Callable[[], object], times: int) -> float:
    """The median of several runs, each of `times` in a row."""
    found = []
    work()
    for _ in range(5):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        found.append(begin.elapsed_time(end) / times)
    return statistics.median(found)


def link_ms(spec: Any, rows: int, degree: int, logit_rows: int) -> float:
    """Of a step: two sums per layer and one of embeddings (a ring sends 2 (n - 1) / n of the bytes), and the gathering
    of logits, in which rank 0 receives all parts but its own."""
    sums = (2 * spec.num_layers + 1) * rows * spec.hidden_size * 2 * 2 * (degree - 1) / degree
    logits = logit_rows * spec.vocab_size * 4 * (degree - 1) / degree
    return (sums + logits) / NVLINK * 1e3


def compute(model: str, degree: int) -> dict[str, float]:
    """Milliseconds of rank 0's steps."""
    from penstock.flow import Admit, Row, SamplingParams
    from penstock.forward import decode_graphs
    from penstock.forward.cuda_backend import CudaBackend
    from penstock.forward.cuda_ranks import silent_place
    from penstock.forward.graph_capture import GraphCapture
    from penstock.forward.memory import CacheSize
    from penstock.forward.torch_loading import allocate_pages
    from penstock.model.load_dense import load_dense
    from penstock.model.weights.dummy_tensors import DeviceDummySource
    from penstock.model.weights.place import Shard
    from penstock.store.hf_config import spec_from_config

    device, dtype, shard = torch.device("cuda"), torch.bfloat16, Shard(0, degree)
    spec = spec_from_config(CONFIGS[model], None, model)
    loaded = load_dense(spec, DeviceDummySource(device), dtype=dtype, device=device, context=CONTEXT, shard=shard)
    held = -(-(LENGTH + 1) // BLOCK)
    size = CacheSize(BLOCK, (max(STREAMS) * held + PROMPT // BLOCK + 2,), (0,), CONTEXT)
    pages = allocate_pages(loaded.spec, size, dtype, device)
    for page in pages:
        page.keys.normal_()
        page.values.normal_()
    most = max(STREAMS)
    backend = CudaBackend(
        loaded, pages, dtype=dtype, context=CONTEXT, max_sequences=most, place=silent_place(shard, spec.vocab_size)
    )
    greedy = SamplingParams(temperature=0.0)
    prompt = Admit(0, [1] * PROMPT, PROMPT, greedy, 0, 0, (), [[1 + most * held + n for n in range(PROMPT // BLOCK)]])
    result = {"weights_gb": loaded.num_bytes / 1e9}
    decode_graphs.SIZES = STREAMS
    with torch.inference_mode():
        backend._slots.apply([prompt], [])
        chunk = [Row(0, 0, PROMPT, 1)]

        def prefill() -> None:
            computed = backend._compute(chunk, False)
            backend._logits(computed.hidden, [len(computed.hidden) - 1])

        prefill()
        graphs = backend.graphs(PROMPT)
        graphs.capture(GraphCapture())
        backend.use(graphs)
        result["prefill_4096_ms"] = milliseconds(prefill, 3)
        admits = [
            Admit(slot, [1] * LENGTH, LENGTH, greedy, 0, 0, (), [[1 + slot * held + n for n in range(held)]])
            for slot in range(most)
        ]
        backend._slots.apply(admits, [])
        for streams in STREAMS:
            rows = [Row(slot, LENGTH, 1, 1) for slot in range(streams)]
            result[f"decode_{streams}_ms"] = milliseconds(lambda rows=rows: graphs.decode.run(rows), 20)
    for name, rows, logits in [("prefill_4096", PROMPT, 1), *((f"decode_{n}", n, n) for n in STREAMS)]:
        result[f"{name}_link_ms_computed"] = link_ms(spec, rows, degree, logits)
    return result


def engine(model: str, *, is_rank: bool) -> dict[str, Any]:
    """Of a whole engine: times, and some tokens."""
    from penstock import LLM, SamplingParams
    from penstock.system.ownership import claim_process

    claim_process()
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as meeting:
        if is_rank:
            from helpers.lone_rank import become_lone_rank

            become_lone_rank(meeting, followers=EncodingFollowers())
        (Path(folder) / "config.json").write_text(json.dumps(CONFIGS[model]))
        begun = time.perf_counter()
        llm = LLM(folder, load_format="dummy", context=CONTEXT, device="cuda")
        result: dict[str, Any] = {"start_s": time.perf_counter() - begun}
        drawn = random.Random(0)

        def seconds(streams: int, length: int, new: int) -> float:
            prompts = [[drawn.randrange(10, 90_000) for _ in range(length)] for _ in range(streams)]
            params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
            start = time.perf_counter()
            llm.generate(prompts, params, progress=False)
            return time.perf_counter() - start

        params = SamplingParams(temperature=0.0, max_tokens=32, ignore_eos=True)
        prompts = [list(range(first, first + 50)) for first in range(100, 900, 100)]
        result["tokens"] = [one.tokens for one in llm.generate(prompts, params, progress=False)]
        seconds(1, 64, 8)
        for streams, new in ((1, 128), (32, 96), (128, 96)):
            first = min(seconds(streams, 512, 1) for _ in range(2))
            whole = min(seconds(streams, 512, new + 1) for _ in range(2))
            result[f"decode_{streams}_ms"] = (whole - first) / new * 1e3
        result["prefill_4096_ms"] = min(seconds(1, 4096, 1) for _ in range(3)) * 1e3
        llm.check_integrity()
    return result


class EncodingFollowers:
    """Implements `rank_forward.Followers`: messages are made, and go nowhere."""

    def __init__(self) -> None:
        import msgspec

        self.encode = msgspec.msgpack.Encoder().encode

    def wait_loaded(self) -> int:
        return 0

    def send(self, message: Any) -> None:
        self.encode(message)

    def close(self) -> None: ...


def alone(model: str) -> dict[str, Any]:
    found = {}
    for kind in ("engine", "rank"):
        command = [sys.executable, __file__, kind, "--model", model]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode:
            raise SystemExit(run.stderr[-4000:])
        found[kind] = json.loads(run.stdout.splitlines()[-1])
    plain, rank = (found[kind].pop("tokens") for kind in ("engine", "rank"))
    same = [sum(a == b for a, b in zip(*pair, strict=True)) for pair in zip(plain, rank, strict=True)]
    found["same_tokens"] = {"of": len(plain[0]), "of_each_answer": same}
    return found


def show(found: dict[str, Any]) -> None:
    for name, values in found.items():
        told = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in values.items()}
        print(f"{name:10} " + "  ".join(f"{key} {value}" for key, value in told.items()), flush=True)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("what", choices=("compute", "alone", "engine", "rank"))
    arguments.add_argument("--model", choices=CONFIGS, default="8b")
    arguments.add_argument("--degree", type=int, action="append")
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    if options.what in ("engine", "rank"):
        print(json.dumps(engine(options.model, is_rank=options.what == "rank")))
        return
    found: dict[str, Any] = {}
    if options.what == "alone":
        found = alone(options.model)
        show(found)
    else:
        for degree in options.degree or (1, 2, 4, 8):
            found[str(degree)] = compute(options.model, degree)
            show({f"of {degree}": found[str(degree)]})
            torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
