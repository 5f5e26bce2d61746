"""CPU time of a draw by sampling parameters: the native sampler, and the reference in torch if it is installed.

    python bench/cpu_draws.py [--vocab 49152,151936] [--rows 8] [--rounds 40] [--json bench/results/cpu-draws.json]

Microseconds of CPU time per row, in one thread, the median of rounds that alternate between all kinds and samplers.
Logits are normal with a deviation of 3; sequences have 512 tokens, of which 256 are output. A constrained row has the
mask of a grammar within a string: nearly all tokens are allowed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from penstock.flow import Admit, Constraint, SamplingParams
from penstock.sample.constraints import StepConstraints
from penstock.sample.masks import pack_bits
from penstock.sample.native_sampler import NativeSampler

KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {},
    "top_k and top_p": {"temperature": 0.6, "top_k": 50, "top_p": 0.9},
    "typical_p": {"typical_p": 0.8},
    "penalties": {"temperature": 0.0, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
    "bias of 100 tokens": {"temperature": 0.0, "logit_bias": dict.fromkeys(range(100, 200), 1.0)},
    "50 banned tokens": {"temperature": 0.0, "banned_tokens": tuple(range(50))},
    "2,000 allowed tokens": {"temperature": 0.0, "allowed_tokens": tuple(range(2000))},
    "constraint": {"temperature": 0.0, "constraint": Constraint.json_object()},
    "logprobs 0": {"temperature": 0.0, "logprobs": 0},
    "logprobs 20": {"temperature": 0.0, "logprobs": 20},
    "bias and logprobs 20": {"temperature": 0.0, "logit_bias": {5: 1.0}, "logprobs": 20},
}
PROMPT, LENGTH = 256, 512


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--vocab", default="49152,151936")
    arguments.add_argument("--rows", type=int, default=8)
    arguments.add_argument("--rounds", type=int, default=40)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    report = {vocab: measure(int(vocab), options.rows, options.rounds) for vocab in options.vocab.split(",")}
    print(json.dumps(report, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def measure(vocab: int, rows: int, rounds: int) -> dict[str, dict[str, float]]:
    """Microseconds per row, by kind and sampler."""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, vocab, (rows * len(KINDS), LENGTH + 1), dtype=np.int32)
    logits = rng.standard_normal((rows, vocab), dtype=np.float32) * 3
    samplers = make_samplers(vocab, tokens)
    slots = {kind: list(range(place * rows, (place + 1) * rows)) for place, kind in enumerate(KINDS)}
    for kind, own in slots.items():
        for slot in own:
            request = Admit(slot, [1] * PROMPT, PROMPT, SamplingParams(**KINDS[kind]), slot, 0, (2,), [])
            for sampler in samplers.values():
                sampler.admit(request)
    allowed = np.repeat(pack_bits(range(7, vocab), vocab)[None], rows, 0)
    times: dict[tuple[str, str], list[float]] = defaultdict(list)
    for _ in range(rounds):
        for kind, own in slots.items():
            constraints = StepConstraints(list(range(rows)), [], allowed, {}) if kind == "constraint" else None
            for name, sampler in samplers.items():
                times[kind, name].append(time_draw(sampler, logits.copy(), own, constraints))
    return {kind: {name: round(median(times[kind, name]), 1) for name in samplers} for kind in KINDS}


def make_samplers(vocab: int, tokens: np.ndarray[Any, Any]) -> dict[str, Any]:
    samplers: dict[str, Any] = {"native": NativeSampler(vocab, tokens.copy())}
    if importlib.util.find_spec("torch") is not None:
        import torch

        from penstock.sample.torch_sampler import TorchSampler

        torch.set_num_threads(1)
        samplers["torch"] = TorchSampler(vocab, torch.from_numpy(tokens))
    return samplers


def time_draw(
    sampler: Any, logits: np.ndarray[Any, Any], slots: list[int], constraints: StepConstraints | None
) -> float:
    values: Any = logits
    if not isinstance(sampler, NativeSampler):
        import torch

        values = torch.from_numpy(logits)
    started = time.process_time_ns()
    sampler.sample(values, slots, [LENGTH] * len(slots), constraints)
    return (time.process_time_ns() - started) / 1e3 / len(slots)


if __name__ == "__main__":
    main()
