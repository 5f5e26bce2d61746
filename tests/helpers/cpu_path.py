"""Requests of every kind through the library, and logits without a scheduler: what the CPU path computes, as plain
values. Imports no torch: `without_torch` runs it where there is none."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from penstock import LLM, Constraint, SamplingParams
from penstock.flow import TokenLogprobs

PROMPT = list(range(20, 50))
TEXT = random.Random(0).choices(range(2, 320), k=120)  # the vocabulary of tiny models
SCHEMA = {"type": "object", "properties": {"hot": {"type": "boolean"}}, "required": ["hot"]}
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "sampled": {"temperature": 1.3, "seed": 1},
    "filtered": {"top_k": 20, "top_p": 0.9, "min_p": 0.01, "seed": 2},
    "typical": {"typical_p": 0.7, "seed": 3},
    "penalised": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "seed": 4},
    "biased": {"logit_bias": {30: 4.0, 31: -4.0}, "banned_tokens": (40, 41), "min_tokens": 12, "seed": 5},
    "allowed": {"allowed_tokens": tuple(range(60, 90)), "seed": 6},
    "choices": {"n": 3, "seed": 7},
    "reported": {"logprobs": 3, "prompt_logprobs": 2, "seed": 8},
    "constrained": {"constraint": Constraint.json_schema(SCHEMA), "max_tokens": 200, "seed": 9, "logprobs": 1},
}


def open_llm(folder: Path, **settings: Any) -> LLM:
    exact = {"device": "cpu", "kv_dtype": "float32", "threads": 1, "context": 256, "kv_memory": "20MB"}
    return LLM(str(folder), **{**exact, **settings})


def answers(llm: LLM) -> dict[str, Any]:
    """By name: tokens of each choice, and what else was asked for."""
    params = {name: SamplingParams(**{"max_tokens": 16, **values}) for name, values in PARAMS.items()}
    done = llm.generate([PROMPT] * len(params), list(params.values()), progress=False)
    found: dict[str, Any] = {}
    for name, one in zip(params, done, strict=True):
        assert one.error is None, (name, one.error)
        found[name] = {
            "tokens": [choice.tokens for choice in one.choices],
            "logprobs": [_entries(choice.logprobs) for choice in one.choices],
            "prompt": _entries(one.prompt_logprobs),
        }
    for pooling in ("mean", "last"):
        found[pooling] = llm.embed(PROMPT, pooling=pooling).vector  # type: ignore[arg-type]
    found["chat"] = llm.chat([{"role": "user", "content": "the tea"}], params["greedy"]).text
    llm.check_integrity()
    return found


def difference(found: Any, expected: Any) -> float:
    """The largest between numbers in the same places; infinite where anything else differs."""
    if isinstance(expected, float):
        return abs(found - expected)
    if isinstance(expected, dict):
        found, expected = list(found.items()), list(expected.items())
    if isinstance(expected, list | tuple):
        if len(found) != len(expected):
            return float("inf")
        return max((difference(*pair) for pair in zip(found, expected, strict=True)), default=0.0)
    return 0.0 if found == expected else float("inf")


def _entries(entries: list[TokenLogprobs | None] | None) -> list[Any] | None:
    if entries is None:
        return None
    return [one and [one.token, one.logprob, one.rank, [list(top) for top in one.top]] for one in entries]
