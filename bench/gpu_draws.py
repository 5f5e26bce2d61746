"""Extra time per decode step by sampling parameters on a GPU.

    python bench/gpu_draws.py [--model 0.6b] [--rows 1,8,64,256] [--context 512] [--steps 64] [--rounds 3]

The variants alternate in one process on the same prompts. Printed are medians over all rounds, in ms: the step, its
extra time over greedy, and the host's time. Weights are random and logits flat, so top_p alone keeps tens of thousands
of tokens, its worst case.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from gpu import Bench, Variant
from gpu_profile import Steps
from gpu_targets import CONFIGS

WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.6},
    "top_k and top_p": {"temperature": 0.6, "top_k": 50, "top_p": 0.9},
    "top_p": {"temperature": 0.6, "top_p": 0.9},
    "penalties": {"temperature": 0.6, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "everything": {
        "temperature": 0.6,
        "top_k": 50,
        "top_p": 0.9,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.1,
        "logit_bias": dict.fromkeys(range(20, 40), 1.0),
        "banned_tokens": tuple(range(50, 60)),
    },
}


def take(bench: Bench, rows: int, context: int, steps: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of a step, and of the host in it, by variant."""
    from penstock import SamplingParams

    loop = bench.llm._driver.engine.loop  # type: ignore[attr-defined]
    backend, prompts = loop.backend, bench.prompts(rows, context)
    found: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(rounds + 1):
        for name, way in WAYS.items():
            watched = loop.backend = Steps(backend)
            params = SamplingParams(**way, max_tokens=steps, ignore_eos=True, seed=0)
            bench.llm.generate(prompts, params, progress=False)
            if number:  # the first round fills caches
                found[name].append(watched.told(steps // 2))
    loop.backend = backend
    bench.llm.check_integrity()
    return {
        name: (median(step for step, _ in taken), median(host for _, host in taken)) for name, taken in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=list(CONFIGS), default="0.6b")
    parser.add_argument("--rows", type=lambda text: [int(part) for part in text.split(",")], default=[1, 8, 64, 256])
    parser.add_argument("--context", type=int, default=512)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(CONFIGS[arguments.model]))
        bench = Bench(folder, Variant(arguments.model))
    for rows in arguments.rows:
        taken = take(bench, rows, arguments.context, arguments.steps, arguments.rounds)
        greedy, _ = taken["greedy"]
        for name, (step, host) in taken.items():
            print(
                f"{arguments.model} {rows:4d} rows  {name:<16} {step:7.3f}  {step - greedy:+7.3f}  host {host:6.3f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
