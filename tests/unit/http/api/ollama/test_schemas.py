"""Every field of the bodies: values that are taken, and values that are refused with an error that names the field."""

from __future__ import annotations

import json
from typing import Any

import ollama
import pytest

from helpers.schema_tables import NO_BOOLEANS, NO_INTEGERS, NO_STRINGS, Checked, Table, rows
from penstock.errors import InvalidRequest
from penstock.http.api.ollama.schemas import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaPullRequest,
    OllamaShowRequest,
)
from penstock.http.parse.schema import parse

USER = {"role": "user", "content": "a"}
CALL = {"function": {"name": "f", "arguments": {"a": [1]}}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
PICTURE = "iVBORw0KGgo="

MODEL = (("m", "m:latest", "a/b:1"), (*NO_STRINGS, None, ""))
KEPT = (("5m", "1h30m", "-1", "-1s", "0", "1.5h", -1, 0, 300, 0.5), ("", "5 m", "m", "ever", True, [], {}))
GENERATION: Table = {
    "model": MODEL,
    "stream": ((True, False), NO_BOOLEANS),
    "format": (("", "json", {}, {"type": "object"}), ("xml", 1, True, [])),
    "options": (({}, {"temperature": 0}), ("a", [], 1, {"temprature": 1})),
    "keep_alive": KEPT,
    "think": ((True, False, "low", "medium", "high"), ("", "none", "much", 1, 0, [], {})),
    "logprobs": ((True, False), NO_BOOLEANS),
    "top_logprobs": ((0, 5, 20), (-1, 21, *NO_INTEGERS)),
    "truncate": ((True, False), NO_BOOLEANS),
    "shift": ((True, False), NO_BOOLEANS),
}
CHAT: Table = GENERATION | {
    "messages": (
        (
            [],
            [USER],
            [{**USER, "images": []}, {"role": "assistant", "content": "b", "thinking": "hm", "images": None}],
            [{"role": "system", "content": ""}, {**USER, "name": "Ann"}],
            [{"role": "assistant", "content": "", "tool_calls": [CALL]}],
            [{"role": "assistant", "tool_calls": [{**CALL, "id": "c", "type": "function"}]}],
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "index": 0, "arguments": {}}}]}],
            [{"role": "tool", "content": "1", "tool_name": "f"}, {"role": "tool", "content": "1", "tool_call_id": "c"}],
        ),
        (
            "a",
            [1],
            [{"content": "a"}],
            [{"role": "bot", "content": "a"}],
            [{"role": "user", "content": ["a"]}],
            [{**USER, "images": [PICTURE]}],
            [{**USER, "who": "me"}],
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{}"}}]}],
            [{"role": "assistant", "tool_calls": [{"function": {"name": ""}}]}],
            [{"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "f"}}]}],
        ),
    ),
    "tools": (
        ([], [TOOL], [{"function": {"name": "f"}}], [{"type": "function", "function": {"name": "f", "strict": True}}]),
        ({}, [{}], ["f"], [{"type": "web_search"}], [{**TOOL, "name": "f"}], [TOOL] * 129),
    ),
}
GENERATE: Table = GENERATION | {
    "prompt": (("a", ""), NO_STRINGS),
    "system": (("a", ""), NO_STRINGS),
    "raw": ((True, False), NO_BOOLEANS),
    "suffix": (("",), ("b", 1)),
    "template": (("",), ("{{ .Prompt }}",)),
    "context": (([],), ([1, 2],)),
    "images": (([],), ([PICTURE],)),
    "width": ((), (1,)),
    "height": ((), (1,)),
    "steps": ((), (1,)),
}
EMBED: Table = {
    "model": MODEL,
    "input": (("a", "", [], ["a", "b"], ["a"] * 2048), (1, {}, [1], ["a"] * 2049, None)),
    "truncate": ((True, False), NO_BOOLEANS),
    "dimensions": ((1, 64), (0, -1, *NO_INTEGERS)),
    "options": (({}, {"num_ctx": 9}), (1,)),
    "keep_alive": KEPT,
}
EMBEDDINGS: Table = {
    "model": MODEL,
    "prompt": (("a", ""), NO_STRINGS),
    "options": (({},), (1,)),
    "keep_alive": KEPT,
}
SHOW: Table = {
    "model": (("m",), NO_STRINGS),
    "name": (("m", ""), NO_STRINGS),
    "verbose": ((False,), (True,)),
    "system": (("",), ("a",)),
    "template": (("",), ("a",)),
    "options": (({},), ({"a": 1},)),
}
PULL: Table = {
    "model": (("m",), NO_STRINGS),
    "name": (("m", ""), NO_STRINGS),
    "stream": ((True, False), NO_BOOLEANS),
    "insecure": ((False,), (True,)),
    "username": (("",), ("me",)),
    "password": (("",), ("secret",)),
}
BODIES: dict[type[Any], tuple[Table, dict[str, Any]]] = {
    OllamaChatRequest: (CHAT, {"model": "m", "messages": [USER], "logprobs": True}),
    OllamaGenerateRequest: (GENERATE, {"model": "m", "prompt": "a", "logprobs": True}),
    OllamaEmbedRequest: (EMBED, {"model": "m", "input": "a"}),
    OllamaEmbeddingsRequest: (EMBEDDINGS, {"model": "m", "prompt": "a"}),
    OllamaShowRequest: (SHOW, {"model": "m"}),
    OllamaPullRequest: (PULL, {"model": "m"}),
}
ALONE = {"logprobs"}  # what others of a body need


def cases(place: int) -> list[Any]:
    return [
        pytest.param(schema, *row.values, id=f"{schema.__name__}-{row.id}")
        for schema, (table, _) in BODIES.items()
        for row in rows(table, place)
    ]


def body(schema: type[Any], field: str, value: Any) -> dict[str, Any]:
    _, plain = BODIES[schema]
    beside = plain if field == "top_logprobs" else {name: given for name, given in plain.items() if name not in ALONE}
    return {**beside, field: value}


@pytest.mark.parametrize("schema", BODIES)
def test_the_tables_have_every_field(schema: type[Any]) -> None:
    assert set(BODIES[schema][0]) == set(schema.model_fields)


@pytest.mark.parametrize(("schema", "field", "value"), cases(0))
def test_taken(schema: type[Any], field: str, value: Any) -> None:
    Checked(schema).takes(body(schema, field, value))


@pytest.mark.parametrize(("schema", "field", "value"), cases(1))
def test_refused(schema: type[Any], field: str, value: Any) -> None:
    Checked(schema).refuses(body(schema, field, value), field)


@pytest.mark.parametrize(
    ("schema", "sdk"),
    [
        (OllamaChatRequest, ollama._types.ChatRequest),
        (OllamaGenerateRequest, ollama._types.GenerateRequest),
        (OllamaEmbedRequest, ollama._types.EmbedRequest),
        (OllamaEmbeddingsRequest, ollama._types.EmbeddingsRequest),
        (OllamaShowRequest, ollama._types.ShowRequest),
        (OllamaPullRequest, ollama._types.PullRequest),
    ],
)
def test_all_that_the_sdk_can_send_is_known(schema: type[Any], sdk: type[Any]) -> None:
    assert set(sdk.model_fields) <= set(schema.model_fields)


def refused(schema: type[Any], **fields: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        parse(schema, json.dumps({"model": "m", **fields}).encode())
    assert caught.value.param is not None
    return caught.value.message


@pytest.mark.parametrize(
    ("message", "wanted"),
    [
        ({"role": "user"}, "messages[0].content is required"),
        ({**USER, "tool_calls": [CALL]}, "messages[0].tool_calls goes with the role assistant only"),
        ({**USER, "thinking": "hm"}, "messages[0].thinking goes with the role assistant only"),
        ({**USER, "tool_name": "f"}, "messages[0].tool_name goes with the role tool only"),
        ({"role": "assistant", "tool_call_id": "c"}, "messages[0].tool_call_id goes with the role tool only"),
    ],
)
def test_what_a_role_does_not_have(message: dict[str, Any], wanted: str) -> None:
    assert refused(OllamaChatRequest, messages=[message]) == wanted


def test_what_does_not_go_together() -> None:
    assert refused(OllamaChatRequest, top_logprobs=2) == "top_logprobs needs logprobs: true"
    assert refused(OllamaGenerateRequest, raw=True, system="a").startswith("system does not go with raw")
    assert refused(OllamaGenerateRequest, raw=True, think=True).startswith("think does not go with raw")
    assert refused(OllamaShowRequest, name="other").startswith("name is not the same as model")
    assert refused(OllamaShowRequest, model="").startswith("model is required")


def test_images_are_refused_in_plain_words() -> None:
    told = refused(OllamaChatRequest, messages=[{**USER, "images": [PICTURE]}])
    assert told == "messages[0].images is not supported (the model reads text only): leave it out, or send []"


def test_the_older_name_of_a_model() -> None:
    for given in ({"name": "m"}, {"model": "m", "name": ""}, {"model": "m", "name": "m"}):
        assert Checked(OllamaShowRequest).takes(given).model_name == "m"
