"""What an answer must look like, by the names of other servers."""

from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Constraint
from penstock.http.api.openai import chat, completions
from penstock.http.api.openai.sampling import sampling_params
from penstock.http.api.response_format import CLIENT_NAMES
from penstock.http.parse.schema import parse

CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}]}
TEXT = {"model": "m", "prompt": "Hi"}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GBNF = 'root ::= "a"'


def asked(**fields: Any) -> tuple[Constraint | None, dict[str, str]]:
    """The same of chat and of plain completions."""
    made = []
    for schema, base in ((chat.REQUEST, CHAT), (completions.REQUEST, TEXT)):
        body = parse(schema, json.dumps({**base, **fields}).encode())
        params = sampling_params(body, {}, max_tokens=1, logprobs=None, prompt_logprobs=None)
        fields_of_response_format = CLIENT_NAMES.items()
        names = dict(body.client_names().items() - fields_of_response_format)
        names = {internal: name for internal, name in names.items() if internal.startswith("constraint")}
        made.append((params.constraint, names))
    assert made[0] == made[1]
    return made[0]


@pytest.mark.parametrize(
    ("fields", "constraint", "name"),
    [
        ({"json_schema": SCHEMA}, Constraint.json_schema(SCHEMA), "json_schema"),
        ({"json_schema": '{"type": "integer"}'}, Constraint.json_schema({"type": "integer"}), "json_schema"),
        ({"json_schema": {}}, Constraint.json_schema({}), "json_schema"),
        ({"regex": "a+"}, Constraint.regex("a+"), "regex"),
        ({"grammar": GBNF}, Constraint.grammar(GBNF), "grammar"),
        ({"ebnf": GBNF}, Constraint.grammar(GBNF), "ebnf"),
        ({"guided_json": SCHEMA}, Constraint.json_schema(SCHEMA), "guided_json"),
        ({"guided_regex": "a+"}, Constraint.regex("a+"), "guided_regex"),
        ({"guided_choice": ["a", "b"]}, Constraint.choice(["a", "b"]), "guided_choice"),
        ({"guided_grammar": GBNF}, Constraint.grammar(GBNF), "guided_grammar"),
        ({"structured_outputs": {"json": SCHEMA}}, Constraint.json_schema(SCHEMA), "structured_outputs.json"),
        ({"structured_outputs": {"regex": "a+"}}, Constraint.regex("a+"), "structured_outputs.regex"),
        ({"structured_outputs": {"choice": ["a"]}}, Constraint.choice(["a"]), "structured_outputs.choice"),
        ({"structured_outputs": {"grammar": GBNF}}, Constraint.grammar(GBNF), "structured_outputs.grammar"),
        ({"structured_outputs": {"json_object": True}}, Constraint.json_object(), "structured_outputs.json_object"),
        ({"regex": "a+", "response_format": {"type": "text"}}, Constraint.regex("a+"), "regex"),
        ({"regex": "a+", "grammar": "", "guided_json": None}, Constraint.regex("a+"), "regex"),
    ],
)
def test_names(fields: dict[str, Any], constraint: Constraint, name: str) -> None:
    assert asked(**fields) == (constraint, {constraint.param: name})


def test_none_of_them() -> None:
    assert asked() == (None, {})
    assert asked(grammar="", regex="", ebnf="", structured_outputs=None) == (None, {})


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"regex": "a", "grammar": GBNF}, "grammar", "together with regex"),
        ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "guided_regex", "with response_format"),
        (
            {"structured_outputs": {"regex": "a", "json_object": True}},
            "structured_outputs.json_object",
            "with structured_outputs.regex",
        ),
        ({"structured_outputs": {"json_object": False}}, "structured_outputs", "must have one of"),
        ({"structured_outputs": {}}, "structured_outputs", "must have one of"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structured_outputs.structural_tag", "not supported"),
        ({"json_schema": "{"}, "json_schema", "is not JSON"),
        ({"guided_json": "[]"}, "guided_json", "must be the JSON of an object"),
    ],
)
def test_what_cannot_be_had(fields: dict[str, Any], param: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as caught:
        asked(**fields)
    assert caught.value.param == param
