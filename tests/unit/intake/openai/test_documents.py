"""The small endpoints, and the OpenAPI document of all of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from openai.types import Model as SdkModel

from openai_samples import CHAT, raw
from penstock.intake.openai import chat, models, openapi, tokens
from penstock.intake.openai.parse import parse
from penstock.tokenize import Tokenizer

MODEL = models.Model(id="tiny", created=1_700_000_000, max_model_len=128)


def test_models() -> None:
    one = models.one(MODEL)

    SdkModel.model_validate_json(one, strict=True)
    assert json.loads(one) == {
        "id": "tiny",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "penstock",
        "max_model_len": 128,
    }
    assert json.loads(models.listed([MODEL])) == {"object": "list", "data": [json.loads(one)]}


def test_tokenized(vocabulary: Tokenizer) -> None:
    ids = vocabulary.encode("ab c")
    plain = parse(tokens.TokenizeRequest, raw({"prompt": "ab c"}))
    spelt = parse(tokens.TokenizeRequest, raw({"prompt": "ab c", "return_token_strs": True}))
    wanted = {"count": 4, "max_model_len": 128, "tokens": ids}

    assert json.loads(tokens.tokenized(plain, ids, context=128, vocabulary=vocabulary)) == wanted
    assert json.loads(tokens.tokenized(spelt, ids, context=128, vocabulary=vocabulary)) == {
        **wanted,
        "token_strs": ["<|start|>", "ab", " ", "c"],
    }


def test_a_conversation_to_tokenize_is_rendered_as_chat_would() -> None:
    fields = {"messages": CHAT["messages"], "chat_template_kwargs": {"a": 1}, "continue_final_message": True}
    asked = parse(tokens.TokenizeRequest, raw(fields))

    assert asked.template_options() == parse(chat.REQUEST, raw({**CHAT, **fields})).template_options()


def test_detokenized() -> None:
    assert json.loads(tokens.detokenized("naïve 🦙")) == {"prompt": "naïve 🦙"}


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from ([value["$ref"]] if isinstance(value.get("$ref"), str) else [])
        yield from (found for inner in value.values() for found in references(inner))
    elif isinstance(value, list):
        yield from (found for inner in value for found in references(inner))


def test_the_document_refers_to_nothing_it_does_not_have() -> None:
    known = openapi.components()
    routes = [
        *[openapi.request_body(schema) for schema in openapi.REQUESTS],
        *[openapi.response(answer, "An answer.", chunk=answer) for answer in openapi.ANSWERS],
    ]

    wanted = {reference.removeprefix("#/components/schemas/") for reference in references([known, routes])}
    assert wanted <= set(known)


def test_every_field_of_a_request_is_described() -> None:
    known = openapi.components()
    for schema in openapi.REQUESTS:
        fields = known[schema.__name__]["properties"]
        assert [name for name, field in fields.items() if not field.get("description")] == []
