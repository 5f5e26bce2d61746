"""Requests with any mixture of parameters, crowded into a cache that is too small for them, get to the last bit what
each gets alone: in chunks, with prefix hits, preempted, planned ahead, beside one that is left in the middle."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from helpers import tiny_models
from helpers.native_paged_model import needs_library
from penstock import LLM, Constraint, SamplingParams
from penstock.flow import Completion

pytestmark = needs_library  # on torch's operations a product's last bits depend on the rows beside it
WORDS = ("the tea is ", "a cup of hot coffee and ", "[user] what", "in on at ", "zz", "\n\n", "é ü ")
CONSTRAINTS = (
    Constraint.regex(r"[a-z]{3,20}( [0-9]{2})*"),
    Constraint.json_schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
)
# name: how likely it is given, and the values it may have
PARAMETERS: dict[str, tuple[float, list[Any]]] = {
    "temperature": (0.7, [0.0, 0.7, 1.5]),
    "top_p": (0.3, [0.3, 0.9]),
    "top_k": (0.3, [1, 5, 200]),
    "min_p": (0.2, [0.05]),
    "typical_p": (0.1, [0.5]),
    "repetition_penalty": (0.3, [1.3]),
    "frequency_penalty": (0.3, [0.4]),
    "presence_penalty": (0.2, [-0.5]),
    "logprobs": (0.3, [0, 5]),
    "prompt_logprobs": (0.2, [0, 3]),
    "stop": (0.3, [("a", "th"), ("e ", "xyzzy"), ("in", "on")]),
    "logit_bias": (0.2, [{97: 5.0}, {101: -5.0}]),
    "banned_tokens": (0.1, [tuple(range(100, 160))]),
    "allowed_tokens": (0.1, [tuple(range(60, 200))]),
    "constraint": (0.25, list(CONSTRAINTS)),
    "n": (0.2, [2, 3]),
    "ignore_eos": (0.5, [True]),
}


def parameters(drawn: random.Random) -> SamplingParams:
    chosen = {name: drawn.choice(values) for name, (part, values) in PARAMETERS.items() if drawn.random() < part}
    most = drawn.choice([1, 5, 60, 100])
    return SamplingParams(
        max_tokens=most, min_tokens=drawn.choice([0, 0, min(most, 30)]), seed=drawn.randrange(99), **chosen
    )


def requests(drawn: random.Random) -> tuple[list[str], list[SamplingParams]]:
    shared = ["".join(drawn.choices(WORDS, k=20)) for _ in range(3)]
    prompts = [drawn.choice(shared)[: drawn.randrange(1, 100)] + drawn.choice(WORDS) for _ in range(16)]
    return prompts, [parameters(drawn) for _ in prompts]


def told(completion: Completion) -> Any:
    """All that does not tell of the company it had."""
    choices = [
        (choice.text, choice.tokens, choice.finish, choice.stop, choice.logprobs) for choice in completion.choices
    ]
    return choices, completion.prompt_logprobs, completion.error


@pytest.mark.parametrize("lookahead", [0, 1])
@pytest.mark.parametrize(("family", "memory"), [("llama", "110KB"), ("gemma3", "260KB")])  # for one sequence and a bit
def test_in_any_company(tmp_path: Path, family: str, memory: str, lookahead: int) -> None:
    folder = str(tiny_models.make(family, tmp_path / family))
    drawn = random.Random(f"{family} {lookahead}")
    prompts, params = requests(drawn)
    with LLM(folder, context=256, threads=1, kv_memory="20MB", prefix_caching=False) as llm:
        alone = [told(llm.generate(*each)) for each in zip(prompts, params, strict=True)]
    crowd: dict[str, Any] = {"max_sequences": 8, "step_tokens": 16, "block_size": 4, "lookahead": lookahead}
    with LLM(folder, context=256, threads=2, kv_memory=memory, **crowd) as llm:
        for _ in range(2):  # the second time with what the first has left in the cache
            stream = llm.stream(prompts[0], SamplingParams(max_tokens=100, ignore_eos=True))
            next(stream)
            together = llm.generate(prompts, params)
            stream.close()
            assert [told(completion) for completion in together] == alone
            llm.check_integrity()
        assert llm.stats()["preemptions"] > 0
        assert llm.stats()["prefix_hit_tokens"] > 0
