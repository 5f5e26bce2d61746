"""Requests of every kind to a tiny model: what speculation must not change the answers of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from penstock import Constraint, SamplingParams
from penstock.flow import Completion

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string", "maxLength": 8}}}
REQUESTS = {
    "greedy": SamplingParams(temperature=0.0),
    "filtered": SamplingParams(temperature=0.8, top_p=0.9),
    "typical": SamplingParams(temperature=1.2, typical_p=0.9, min_p=0.001),
    "penalties": SamplingParams(temperature=0.8, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.4),
    "logprobs": SamplingParams(temperature=0.8, logprobs=3, prompt_logprobs=1),
    "masks": SamplingParams(logit_bias={7: 4.0, 9: -100.0}, banned_tokens=tuple(range(60)), min_tokens=20, logprobs=0),
    "schema": SamplingParams(constraint=Constraint("json_schema", msgspec.json.encode(SCHEMA).decode()), logprobs=1),
    "regex": SamplingParams(constraint=Constraint("regex", "([a-e]{2} [0-9])+"), frequency_penalty=0.2, min_tokens=30),
    "short": SamplingParams(constraint=Constraint("regex", "[a-c]{5}[0-9]{2}"), temperature=0.0),
    "stop token": SamplingParams(temperature=2.0, stop_tokens=(100, 101, 102, 103, 104, 105), min_tokens=9),
    "stop string": SamplingParams(temperature=1.5, stop=("a", "th", "é")),
    "choices": SamplingParams(temperature=1.0, n=3),
    "budget": SamplingParams(temperature=0.0, max_tokens=1),
}
PROMPTS = [[3 + (7 * place + index * index) % 200 for index in range(5 + 6 * place)] for place in range(len(REQUESTS))]
PARAMS = [
    msgspec.structs.replace(one, max_tokens=min(one.max_tokens or 48, 48), seed=number, ignore_eos=number % 2 == 0)
    for number, one in enumerate(REQUESTS.values())
]


def outputs(results: Sequence[Completion]) -> list[Any]:
    """All of them that does not depend on time, or on the cache."""
    return [
        [(c.tokens, c.text, c.finish, c.stop, c.logprobs) for c in result.choices] + [result.prompt_logprobs]
        for result in results
    ]
