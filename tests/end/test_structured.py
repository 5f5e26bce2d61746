"""Real weights at temperature 1 under JSON schemas: what is finished is valid, what is cut is the beginning of what is.

SmolLM2 writes little JSON of its own accord, so nothing here comes right by itself. `make proof` runs all 300 schemas.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from helpers.grammar_oracle import GrammarOracle, assert_valid
from helpers.json_schemas import PERSON, PICKED, TREE, random_schemas
from penstock import LLM, Constraint, SamplingParams
from penstock.flow import FinishReason
from penstock.grammar.compiler import Compiler
from penstock.store.files import ModelFiles
from penstock.tokenize.tokenizer import Tokenizer

pytestmark = pytest.mark.weights

WHOLE = (FinishReason.COMPLETE, FinishReason.END)
ALL = [*PICKED, *random_schemas(300 - len(PICKED), seed=2)]
FEW = [PERSON, TREE, *PICKED[3:9], *random_schemas(4, seed=3)]


@pytest.fixture(scope="module")
def llm(smollm2: ModelFiles) -> Iterator[LLM]:
    with LLM("smollm2", context=1024, kv_memory="400MB") as llm:
        yield llm
        llm.check_integrity()


@pytest.fixture(scope="module")
def judge(smollm2: ModelFiles) -> GrammarOracle:
    assert smollm2.tokenizer is not None
    compiler = Compiler(smollm2.tokenizer, smollm2.spec.vocab_size, smollm2.spec.end_tokens)
    return GrammarOracle(compiler, Tokenizer.load(smollm2.tokenizer))


def prove(llm: LLM, judge: GrammarOracle, schemas: list[dict[str, Any]], max_tokens: int) -> Counter[FinishReason]:
    constraints = [Constraint.json_schema(schema) for schema in schemas]
    params = [
        SamplingParams(constraint=constraint, temperature=1.0, max_tokens=max_tokens, seed=seed)
        for seed, constraint in enumerate(constraints)
    ]
    talk = [{"role": "user", "content": "Give me an example of some data, in JSON."}]
    results = llm.chat([talk] * len(schemas), params)
    for schema, constraint, result in zip(schemas, constraints, results, strict=True):
        if result.finish in WHOLE:
            assert_valid(json.loads(result.text), schema)
        else:
            assert result.finish is FinishReason.LENGTH
            assert len(result.tokens) == max_tokens
            text = judge.complete(constraint, result.tokens)
            assert text.startswith(result.text.rstrip("\ufffd"))  # cut in the middle of a character
            assert_valid(json.loads(text), schema)
    return Counter(result.finish for result in results)


def test_a_few(llm: LLM, judge: GrammarOracle) -> None:
    finishes = prove(llm, judge, FEW, max_tokens=40)
    assert finishes[FinishReason.LENGTH]
    assert sum(finishes[finish] for finish in WHOLE)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_300_schemas(llm: LLM, judge: GrammarOracle) -> None:
    finishes: Counter[FinishReason] = Counter()
    for place in range(0, len(ALL), 30):
        finishes += prove(llm, judge, ALL[place : place + 30], max_tokens=160)
    print(dict(finishes))
    assert sum(finishes.values()) == 300
    assert sum(finishes[finish] for finish in WHOLE) > 150
    assert finishes[FinishReason.LENGTH] > 10
