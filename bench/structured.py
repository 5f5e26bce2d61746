"""Cost of a JSON schema: tokens per second with and without, on SmolLM2, in turns in one process.

    python bench/structured.py [--rounds 5] [--tokens 48] [--threads 2] [--json bench/results/structured.json]

Every request generates the same number of tokens at temperature 1, from a cached prompt: the schema is an endless list,
so no request ends early. Each row is the best of its rounds, since other load only makes a run slower; the ratio is
that of the best. Also measured: the time to compile a schema, and the CPU time a constrained row adds to a step on the
host (mask and matcher; the draw kernel applies the mask).
"""

import argparse
import json
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import llguidance
import numpy as np

from penstock import LLM, Constraint, SamplingParams, __version__
from penstock.flow import Admit
from penstock.grammar.compiler import Compiler
from penstock.grammar.grammar_cache import GrammarCache
from penstock.sample.constraints import Constraints
from penstock.system.ownership import claim_process

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "email": {"type": "string", "format": "email"},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "zip": {"type": "string", "pattern": "^[0-9]{5}$"}},
            "required": ["street", "zip"],
            "additionalProperties": False,
        },
        "tags": {"type": "array", "items": {"enum": ["new", "vip", "gone"]}},
    },
    "required": ["name", "age", "email", "address", "tags"],
    "additionalProperties": False,
}
PEOPLE = Constraint.json_schema({"type": "array", "items": PERSON, "minItems": 10_000})
TALK = [{"role": "user", "content": "List the people who live in a small town, as a JSON array of objects."}]
WIDE = Constraint.json_schema(
    {"type": "object", "properties": {f"field_{number}": PERSON for number in range(100)}, "required": ["field_7"]}
)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=5)
    arguments.add_argument("--tokens", type=int, default=48)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--json", type=Path)
    options = arguments.parse_args()
    claim_process()  # as an engine process does
    with LLM("smollm2", context=1024, kv_memory="400MB", threads=options.threads) as llm:
        assert llm.model.tokenizer is not None
        compiler = Compiler(llm.model.tokenizer, llm.model.spec.vocab_size, llm.model.spec.end_tokens)
        report = {
            "compile": compile_times(compiler),
            "per_row": row_costs(llm, compiler),
            "rows": [compare(llm, count, options.tokens, options.rounds) for count in (1, 16)],
            "rounds": options.rounds,
            "threads": options.threads,
            "device": llm.facts["device"],
            "dtype": llm.facts["dtype"],
            "versions": {
                "penstock": __version__,
                "llguidance": llguidance.__version__ if hasattr(llguidance, "__version__") else "",
                "python": platform.python_version(),
            },
        }
    print(json.dumps(report, indent=2))
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n")


def compare(llm: LLM, requests: int, tokens: int, rounds: int) -> dict[str, Any]:
    speeds: dict[bool, list[float]] = {False: [], True: []}
    for number in range(-1, rounds):  # the first round warms up
        for constrained in (False, True) if number % 2 else (True, False):
            speed = tokens_per_s(llm, requests, tokens, PEOPLE if constrained else None, seed=number + 1)
            if number >= 0:
                speeds[constrained].append(speed)
    free, bound = (max(speeds[kind]) for kind in (False, True))
    return {
        "requests": requests,
        "tokens_each": tokens,
        "free_tokens_per_s": round(free, 1),
        "schema_tokens_per_s": round(bound, 1),
        "ratio": round(bound / free, 3),
        "free_rounds": [round(speed, 1) for speed in speeds[False]],
        "schema_rounds": [round(speed, 1) for speed in speeds[True]],
    }


def tokens_per_s(llm: LLM, requests: int, tokens: int, constraint: Constraint | None, seed: int) -> float:
    params = [
        SamplingParams(
            temperature=1.0, max_tokens=tokens, ignore_eos=True, seed=seed * 100 + place, constraint=constraint
        )
        for place in range(requests)
    ]
    started = time.perf_counter()
    results = llm.chat([TALK] * requests, params, progress=False)
    elapsed = time.perf_counter() - started
    assert all(len(result.tokens) == tokens for result in results)
    return requests * tokens / elapsed


def compile_times(compiler: Compiler) -> dict[str, float]:
    """Milliseconds after the vocabulary is loaded; the first value is the loading."""
    started = time.perf_counter()
    compiler.vocabulary()
    times = {"vocabulary_ms": round((time.perf_counter() - started) * 1e3, 1)}
    kinds = {"json_object": Constraint.json_object(), "person_list": PEOPLE, "500_fields": WIDE}
    for name, constraint in kinds.items():
        durations = []
        for _ in range(5):
            started = time.perf_counter()
            compiler.compile(constraint)
            durations.append(time.perf_counter() - started)
        times[f"{name}_ms"] = round(statistics.median(durations) * 1e3, 2)
    return times


def row_costs(llm: LLM, compiler: Compiler) -> dict[str, float]:
    """Microseconds of CPU time per row and step, over output of SmolLM2."""
    params = SamplingParams(temperature=1.0, max_tokens=256, ignore_eos=True, seed=1, constraint=PEOPLE)
    tokens = llm.chat(TALK, params, progress=False).tokens
    vocab_size = llm.model.spec.vocab_size
    constraints = Constraints(vocab_size, GrammarCache(compiler))
    for _ in range(2):  # the first one compiles
        started = time.process_time_ns()
        constraints.admit(Admit(0, [1], 1, params, 0, 0, (), []))
        admitted = time.process_time_ns() - started
    costs: dict[str, list[float]] = {"mask": [], "take": []}
    for place, token in enumerate(tokens):
        times = [time.process_time_ns()]
        masked = constraints.mask([0], [1 + place], before=lambda: None)
        times.append(time.process_time_ns())
        assert masked is not None
        masked.settle([token])
        times.append(time.process_time_ns())
        for cost, spent in zip(costs.values(), np.diff(times), strict=True):
            cost.append(spent / 1e3)
    steps = [sum(parts) for parts in zip(*costs.values(), strict=True)]
    return {
        "admit_us": round(admitted / 1e3, 1),
        **{f"{name}_us": round(statistics.mean(cost), 1) for name, cost in costs.items()},
        "step_us_mean": round(statistics.mean(steps), 1),
        "step_us_median": round(statistics.median(steps), 1),
        "step_us_99th": round(float(np.percentile(steps, 99)), 1),
    }


if __name__ == "__main__":
    main()
