from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from helpers.openai_samples import CHAT, EMBED, TEXT, raw
from penstock.errors import InvalidRequest
from penstock.http import openapi_bodies
from penstock.http.api import capacity_routes, tokenizer_routes
from penstock.http.api.anthropic import messages
from penstock.http.api.generation_fields import MAX_TOKEN_IDS
from penstock.http.api.openai import chat, completions, embeddings
from penstock.http.api.responses import writer as responses
from penstock.http.error_body import render_error
from penstock.http.parse.json_body import MAX_MEMBERS
from penstock.http.parse.schema import parse

DEEP = 50_000
SCHEMAS = [
    schema for schema in openapi_bodies.REQUESTS if schema is not capacity_routes.BudgetRequest
]  # which is content with {}
MESSAGE: dict[str, Any] = {**CHAT, "max_tokens": 5}
RESPONSE: dict[str, Any] = {"model": "tiny", "input": "a"}


def refused(schema: type[BaseModel], body: bytes) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(schema, body)
    render_error(caught.value, "req-1")  # it can be sent, whatever of the body it repeats
    return caught.value


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "the body is empty"),
        (b"{", "not valid JSON"),
        (b'{"model": "m",}', "line 1, column 15"),
        (b'{"model": "\x00"}', "not valid JSON"),
        (b"\xef\xbb\xbf{}", "not valid JSON"),
        (b"[]", "must be a JSON object, got a list"),
        (b"null", "must be a JSON object, got null"),
        (b'"text"', 'must be a JSON object, got "text"'),
        (b'{"temperature": NaN}', "NaN is not a JSON number"),
        (b'{"temperature": -Infinity}', "-Infinity is not a JSON number"),
        (b'{"temperature": 1e999}', "too large: 1e999"),
        (b'{"seed": ' + b"9" * 5000 + b"}", "more than 4300 digits"),
        (b"\xff\xfe", "not UTF-8: byte 0"),
        (b'{"model": "\xed\xa0\x80"}', "not UTF-8: byte 11"),
        (b"[" * DEEP, "nested too deeply"),
        (b'{"a":' * DEEP, "nested too deeply"),
        (b'{"user": ' + b"[" * DEEP + b"]" * DEEP + b"}", "nested too deeply"),
        (raw({"logit_bias": {str(index): 0 for index in range(MAX_MEMBERS + 1)}}), "more than 1024 members"),
    ],
)
def test_bodies_that_are_not_json_objects(body: bytes, words: str) -> None:
    error = refused(chat.REQUEST, body)

    assert words in error.message
    assert error.param is None


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model": "\\ud800"}', "model"),
        (b'{"model": "\\udc00\\ud800"}', "model"),
        (b'{"messages": [{"role": "user", "content": "\\uD83D"}]}', "messages[0].content"),
        (b'{"messages": [{"\\ud800": 1}]}', "messages[0]"),
        (b'{"messages": [{"a\\u0000b": 1}]}', "messages[0]"),
    ],
)
def test_text_that_is_none(body: bytes, param: str) -> None:
    error = refused(chat.REQUEST, body)

    assert "is not valid text" in error.message
    assert error.param == param


def test_all_other_text_arrives_as_it_is() -> None:
    text = "naïve 日本 🦙 \\u0000 \\ud800 \u2028 \x7f \0"
    body = {"model": "m", "messages": [{"role": "user", "content": text}]}

    for escaped in (True, False):  # a NUL is escaped in either case
        parsed = parse(chat.REQUEST, json.dumps(body, ensure_ascii=escaped).encode())
        assert parsed.messages[0].content == text


def test_a_whole_number_is_an_integer_however_it_is_written() -> None:
    body = {**CHAT, "max_tokens": 5.0, "seed": -3.0, "temperature": 1.0, "chat_template_kwargs": {"level": 2.0}}

    parsed = parse(chat.REQUEST, raw(body))

    assert (parsed.max_tokens, parsed.seed, parsed.temperature) == (5, -3, 1.0)
    assert {type(parsed.max_tokens), type(parsed.seed)} == {int}
    assert type((parsed.chat_template_kwargs or {})["level"]) is float  # the client's own: as it was written
    assert refused(chat.REQUEST, raw({**CHAT, "max_tokens": 5.5})).param == "max_tokens"
    assert refused(chat.REQUEST, raw({**CHAT, "max_tokens": 1e300})).param == "max_tokens"


def test_a_name_twice_is_refused_at_any_level() -> None:
    assert refused(chat.REQUEST, b'{"model": "a", "model": "b"}').param == "model"
    assert "twice" in refused(chat.REQUEST, b'{"messages": [{"role": "user", "role": "user"}]}').message
    assert refused(chat.REQUEST, b'{"\\ud800": 1, "\\ud800": 2}').param == "?"


@pytest.mark.parametrize(
    ("schema", "body", "param", "message"),
    [
        (chat.REQUEST, {**CHAT, "temprature": 1}, "temprature", "did you mean temperature?"),
        (chat.REQUEST, {**CHAT, "zzz": 1}, "zzz", "zzz is not a known field"),
        (chat.REQUEST, {**CHAT, "": 1}, '""', '"" is not a known field'),
        (chat.REQUEST, {**CHAT, "<x>": 1}, "<x>", "<x> is not a known field"),
        (chat.REQUEST, {**CHAT, "metadata": {"<x>": 1}}, "metadata.<x>", "metadata.<x> must be a string"),
        (chat.REQUEST, {"model": "m", "mesages": []}, "mesages", "did you mean messages?"),
        (chat.REQUEST, {**CHAT, "x" * 999: 1}, "x" * 64, "is not a known field"),
        (
            chat.REQUEST,
            {**CHAT, "stream": True, "stream_options": {"include_use": True}},
            "stream_options.include_use",
            "did you mean include_usage?",
        ),
        (chat.REQUEST, {"model": "m"}, "messages", "messages is required"),
        (chat.REQUEST, {**CHAT, "prompt": "x"}, "prompt", "not a known field"),
        (completions.REQUEST, {**TEXT, "messages": []}, "messages", "not a known field"),
        (completions.REQUEST, {"model": "m"}, "prompt", "prompt is required"),
        (completions.REQUEST, {**TEXT, "prompt": [5] * (MAX_TOKEN_IDS + 1)}, "prompt", "at most 1048576 entries"),
        (embeddings.REQUEST, {**EMBED, "inputs": []}, "inputs", "did you mean input?"),
        (chat.REQUEST, {**CHAT, "messages": ["hi"]}, "messages[0]", 'messages[0] must be an object, got "hi"'),
        (chat.REQUEST, {**CHAT, "messages": [{}]}, "messages[0].role", "messages[0].role is required"),
        (chat.REQUEST, {**CHAT, "messages": [{"role": 5}]}, "messages[0].role", "role must be a string, got 5"),
        (chat.REQUEST, {**CHAT, "response_format": "json"}, "response_format", 'must be an object, got "json"'),
        (tokenizer_routes.DetokenizeRequest, {"tokens": ["a"]}, "tokens[0]", 'tokens[0] must be an integer, got "a"'),
    ],
)
def test_the_field_at_fault_is_named(schema: type[BaseModel], body: Any, param: str, message: str) -> None:
    error = refused(schema, raw(body))

    assert error.param == param
    assert message in error.message


def test_values_are_repeated_in_short() -> None:
    assert len(refused(chat.REQUEST, raw({**CHAT, "temperature": "x" * 10_000})).message) < 120
    assert len(refused(chat.REQUEST, raw({**CHAT, "temperature": 10**4000})).message) < 120


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(alphabet=st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
GOOD = st.sampled_from([CHAT, TEXT, EMBED, MESSAGE, RESPONSE, {"prompt": "x"}, {"tokens": [1]}])
COMPONENTS = {"schemas": openapi_bodies.components()}
DESCRIBED = {
    schema: jsonschema_rs.validator_for({"$ref": f"#/components/schemas/{schema.__name__}", "components": COMPONENTS})
    for schema in SCHEMAS
}
NAMES = sorted({name for schema in SCHEMAS for name in schema.model_fields})


@settings(max_examples=300, deadline=None)
@given(schema=st.sampled_from(SCHEMAS), body=st.binary(max_size=60) | JSON.map(raw))
def test_nonsense_is_refused_and_nothing_worse(schema: type[BaseModel], body: bytes) -> None:
    refused(schema, body)


@settings(max_examples=600, deadline=None)
@given(schema=st.sampled_from(SCHEMAS), good=GOOD, more=st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3))
def test_near_misses_are_taken_or_refused_and_nothing_worse(
    schema: type[BaseModel], good: dict[str, Any], more: dict[str, Any]
) -> None:
    try:
        parse(schema, raw(good | more))
    except InvalidRequest as error:
        render_error(error, "req-1")
    else:
        assert DESCRIBED[schema].is_valid(good | more), "/openapi.json says otherwise"


@pytest.mark.parametrize(
    ("schema", "body"),
    [
        (chat.REQUEST, {**CHAT, "messages": [None] * 9}),
        (chat.REQUEST, {**CHAT, "messages": [{"role": "user", "content": [None] * 9}]}),
        (chat.REQUEST, {**CHAT, "stop_token_ids": [None] * 9}),
        (chat.REQUEST, {**CHAT, "messages": [{"role": "user", **{str(name): 1 for name in range(9)}}]}),
        (completions.REQUEST, {**TEXT, "prompt": ["", *[None] * 9]}),
        (completions.REQUEST, {**TEXT, "prompt": [1, *[None] * 9]}),
        (completions.REQUEST, {**TEXT, "prompt": [[1], *[[None] * 9] * 9]}),
        (tokenizer_routes.DetokenizeRequest, {"tokens": [None] * 9}),
        (messages.REQUEST, {**MESSAGE, "messages": [None] * 9}),
        (messages.REQUEST, {**MESSAGE, "messages": [{"role": "user", "content": [None] * 9}]}),
        (messages.REQUEST, {**MESSAGE, "messages": [{"role": "assistant", "content": [None] * 9}]}),
        (messages.REQUEST, {**MESSAGE, "system": [None] * 9}),
        (messages.REQUEST, {**MESSAGE, "tools": [None] * 9}),
        (messages.REQUEST, {**MESSAGE, "stop_sequences": [None] * 9}),
        (responses.REQUEST, {**RESPONSE, "input": [None] * 9}),
        (responses.REQUEST, {**RESPONSE, "input": [{"role": "user", "content": [None] * 9}]}),
        (responses.REQUEST, {**RESPONSE, "input": [{"type": "reasoning", "summary": [], "content": [None] * 9}]}),
        (responses.REQUEST, {**RESPONSE, "include": [None] * 9}),
        (responses.REQUEST, {**RESPONSE, "tools": [None] * 9}),
    ],
)
def test_checking_stops_at_the_first_error_of_a_list(schema: type[BaseModel], body: Any) -> None:
    """Else a body of megabytes would make as many errors as it has entries, of which one is told."""
    with pytest.raises(ValidationError) as caught:
        schema.model_validate(body)

    assert caught.value.error_count() == 1


@settings(max_examples=300, deadline=None)
@given(said=st.lists(st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls"]), JSON), max_size=3))
def test_messages_of_any_shape(said: list[dict[str, Any]]) -> None:
    said = [{"role": "user"} | message for message in said]
    param = None
    try:
        parse(chat.REQUEST, raw({"model": "m", "messages": said}))
    except InvalidRequest as error:
        param = error.param
    assert param is None or param.startswith("messages")
