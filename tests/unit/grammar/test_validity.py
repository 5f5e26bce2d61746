"""Whatever is drawn under a JSON schema is valid by it: random tokens, in place of a model's."""

import json
import random
from pathlib import Path

import pytest

from helpers.grammar_oracle import GrammarOracle, assert_valid
from helpers.json_schemas import PICKED, random_schemas
from penstock.flow import Constraint
from penstock.grammar.compiler import Compiler
from penstock.tokenize.tokenizer import Tokenizer

SCHEMAS = [*PICKED, *random_schemas(60, seed=1)]


@pytest.fixture(scope="module")
def judge(compiler: Compiler, tokenizer_file: Path) -> GrammarOracle:
    return GrammarOracle(compiler, Tokenizer.load(tokenizer_file))


@pytest.mark.parametrize("place", range(0, len(SCHEMAS), 10))
def test_random_texts_are_valid(judge: GrammarOracle, place: int) -> None:
    for number, schema in enumerate(SCHEMAS[place : place + 10]):
        rng = random.Random(place + number)
        for steps in (0, 5, 40):
            text = judge.random_text(Constraint.json_schema(schema), rng, steps)
            assert_valid(json.loads(text), schema)
