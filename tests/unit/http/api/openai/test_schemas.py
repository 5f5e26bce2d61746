"""Every field of every body: values that are taken, and values that are refused with an error that names the field."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from helpers.openai_samples import CHAT, EMBED, TEXT, raw
from helpers.schema_tables import CONTEXT_FIELDS, NO_BOOLEANS, NO_INTEGERS, NO_NUMBERS, NO_STRINGS, Checked, Table, rows
from penstock.errors import InvalidRequest
from penstock.http.api import tokenizer_routes
from penstock.http.api.openai import chat, completions, embeddings, ignored_fields
from penstock.http.parse.schema import parse

GENERATION: Table = {
    "model": (("m", ""), NO_STRINGS),
    "stream": ((True, False), NO_BOOLEANS),
    "stream_options": (
        (
            {},
            {"include_usage": True},
            {"include_usage": None},
            {"include_obfuscation": False},
            {"continuous_usage_stats": True},
            {"continuous_usage_stats": False},
        ),
        (
            True,
            [],
            {"include_usage": 1},
            {"continuous_usage_stats": 1},
            {"include_obfuscation": True},
            {"include": True},
        ),
    ),
    "n": ((1, 128), (0, 129, -1, *NO_INTEGERS)),
    "seed": ((0, -(2**63), 2**63 - 1), (2**63, -(2**63) - 1, *NO_INTEGERS)),
    "temperature": ((0, 2, 0.7, 1e-9), (-0.1, 2.1, 10**400, *NO_NUMBERS)),
    "top_p": ((1, 0.1), (0, -1, 1.1, *NO_NUMBERS)),
    "presence_penalty": ((-2, 2, 0.5), (-2.1, 2.1, *NO_NUMBERS)),
    "frequency_penalty": ((-2, 2, 0.5), (-2.1, 2.1, *NO_NUMBERS)),
    "logit_bias": (
        ({}, {"0": -100, "42": 1.5, "50256": 100}),
        ({"a": 1}, {"-1": 1}, {"01": 1}, {"1.0": 1}, {"": 1}, {"1": 101}, {"1": "1"}, {"1": True}, {"1": None}, [], 1),
    ),
    "stop": (("a", [], ["a"], ["a", "b", "c", "d"]), ("", [""], ["a"] * 5, [1], [None], 1, True, {})),
    **dict.fromkeys(("regex", "grammar", "ebnf", "guided_regex", "guided_grammar"), (("a", ""), NO_STRINGS)),
    **dict.fromkeys(("json_schema", "guided_json"), (({}, {"type": "object"}, '{"a": 1}'), (1, [], True))),
    "guided_choice": ((["a", "b"],), ([], [""], [1], "a", {})),
    "guided_whitespace_pattern": ((), ("[ ]?", "")),
    "guided_decoding_backend": (("auto", "guidance", "xgrammar", "outlines", "lm-format-enforcer"), ("", "mine", 1)),
    "structural_tag": ((), ("{}", {})),
    "structured_outputs": (
        (
            {"json": {}},
            {"json": '{"type": "object"}', "disable_any_whitespace": False},
            {"regex": "a", "json": None},
            {"choice": ["a"], "disable_additional_properties": True},
            {"grammar": 'root ::= "a"'},
            {"json_object": True},
        ),
        (
            {"json": 1},
            {"form": {}},
            {"choice": []},
            {"regex": 1},
            {"json_object": 1},
            {"regex": "a", "structural_tag": "{}"},
            {"json": {}, "whitespace_pattern": " "},
            {"json": {}, "disable_any_whitespace": True},
            {"regex": "a", "backend": "xgrammar"},
            "a",
            [],
        ),
    ),
    "response_format": (
        (
            {"type": "text"},
            {"type": "json_object"},
            {"type": "json_schema", "json_schema": {"name": "a-B_9", "schema": {"type": "object"}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": True, "description": "b"}},
            {"type": "json_schema", "json_schema": {"name": "a" * 64, "schema": {}, "strict": None}},
            {"type": "regex", "regex": "[a-z]+"},
            {"type": "choice", "choice": ["yes", "no"]},
            {"type": "grammar", "grammar": 'start: "a"'},
        ),
        (
            "text",
            {},
            [],
            {"type": "xml"},
            {"type": None},
            {"type": "text", "a": 1},
            {"type": "json_object", "json_schema": {"name": "a", "schema": {}}},
            {"type": "json_schema"},
            {"type": "json_schema", "json_schema": {"name": "a"}},
            {"type": "json_schema", "json_schema": {"schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": "{}"}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": None}},
            {"type": "json_schema", "json_schema": {"name": "a", "form": {}}},
            {"type": "json_schema", "json_schema": {"name": "", "schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "a b", "schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "a" * 65, "schema": {}}},
            {"type": "json_schema", "json_schema": {"name": "a", "schema": {}, "strict": 1}},
            {"type": "json_schema", "schema": {}},
            {"type": "regex"},
            {"type": "regex", "regex": ""},
            {"type": "regex", "regex": ["a"]},
            {"type": "choice", "choice": []},
            {"type": "choice", "choice": [""]},
            {"type": "choice", "choice": "yes"},
            {"type": "choice", "choice": [1]},
            {"type": "grammar", "grammar": ""},
            {"type": "grammar"},
        ),
    ),
    "user": (("somebody", ""), NO_STRINGS),
    "max_tokens": ((1, 5.0, 2**31 - 1), (0, -1, 2**31, *NO_INTEGERS)),
    "max_completion_tokens": ((1,), (0, -1, 2**31, *NO_INTEGERS)),
    "best_of": ((1,), (0, 129, *NO_INTEGERS)),
    "top_k": ((0, -1, 40), (-2, 2**31, *NO_INTEGERS)),
    "min_p": ((0, 0.1, 1), (-0.1, 1.1, *NO_NUMBERS)),
    "typical_p": ((0.1, 1), (0, 1.1, *NO_NUMBERS)),
    "repetition_penalty": ((0.5, 1, 100), (0, -1, 101, *NO_NUMBERS)),
    "min_tokens": ((0, 5), (-1, 2**31, *NO_INTEGERS)),
    "stop_token_ids": (([], [0, 5]), ([-1], [2**31], ["1"], [True], [1.5], [0] * 129, 1, "1", {})),
    "ignore_eos": ((True, False), NO_BOOLEANS),
    "speculation": ((True, False), NO_BOOLEANS),
    "include_stop_str_in_output": ((True, False), NO_BOOLEANS),
    "skip_special_tokens": ((True, False), NO_BOOLEANS),
    "spaces_between_special_tokens": ((True, False), NO_BOOLEANS),
    "cache_prompt": ((True,), (False, 1)),
    "timeout": ((0.5, 60), (0, -1, *NO_NUMBERS)),
    "priority": ((-5, 0, 5), (2**31, -(2**31), *NO_INTEGERS)),
    "cache_salt": (("salt",), ("", "s" * 257, *NO_STRINGS)),
    "truncate_prompt_tokens": ((-1, 1, 5.0, 100), (-2, 0, 2**31, *NO_INTEGERS)),
    "prompt_logprobs": ((0, 20), (-1, 21, *NO_INTEGERS)),
    "return_token_ids": ((True, False), NO_BOOLEANS),
    "return_tokens_as_token_ids": ((True, False), NO_BOOLEANS),
    "include_timings": ((True, False), NO_BOOLEANS),
    "timings_per_token": ((True, False), NO_BOOLEANS),
}
TEMPLATED: Table = {
    "add_generation_prompt": ((True, False), NO_BOOLEANS),
    "continue_final_message": ((True, False), NO_BOOLEANS),
    "chat_template_kwargs": (({}, {"enable_thinking": False, "levels": [[{"a": None}]]}), (True, [], "x")),
}
PART = {"type": "text", "text": "a"}
CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOL = {
    "type": "function",
    "function": {"name": "f", "description": "a", "parameters": {"type": "object"}, "strict": True},
}
NO_TOOLS = (
    {},
    "none",
    [1],
    [{}],
    [{"type": "function"}],
    [{"type": "web_search"}],
    [{"type": "custom", "custom": {"name": "f"}}],
    [{"type": "function", "function": {}}],
    [{"type": "function", "function": {"name": ""}}],
    [{"type": "function", "function": {"name": "a b"}}],
    [{"type": "function", "function": {"name": "a" * 65}}],
    [{"type": "function", "function": {"name": "f", "parameters": []}}],
    [{"type": "function", "function": {"name": "f", "arguments": {}}}],
    [{"type": "function", "function": {"name": "f", "strict": 1}}],
    [TOOL] * 129,
)
MESSAGES = (
    [{"role": "system", "content": "a"}, {"role": "developer", "content": "a"}, {"role": "user", "content": ""}],
    [{"role": "user", "content": "a", "name": "Ann"}, {"role": "assistant", "content": "b", "name": None}],
    [{"role": "user", "content": [PART, PART]}, {"role": "tool", "content": [PART], "tool_call_id": "1"}],
    [{"role": "assistant", "content": "b", "refusal": None, "annotations": [], "tool_calls": [], "audio": None}],
    [{"role": "function", "content": "a", "name": "f"}, {"role": "my-role_2.0", "content": [PART]}],
    [{"role": "assistant", "content": "b", "reasoning_content": "a"}],
    [{"role": "assistant", "content": "b", "reasoning": "a", "reasoning_content": None}],
    [{"role": "user", "content": [{**PART, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}],
    [{"role": "assistant", "tool_calls": [CALL, CALL]}],
    [{"role": "assistant", "content": None, "reasoning_content": "a", "thinking_blocks": [{"type": "thinking"}]}],
    [{"role": "assistant", "reasoning": "a"}],
    [{"role": "assistant", "content": "{}", "parsed": {}, "provider_specific_fields": {"refusal": None}}],
    [{"role": "assistant", "tool_calls": [{**CALL, "index": 0, "provider_specific_fields": None}]}],
    [
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "content": "a", "tool_call_id": "1", "name": "f"},
    ],
)
NO_MESSAGES = (
    [],
    {},
    "a",
    [1],
    [None],
    [{}],
    [{"content": "a"}],
    [{"role": "", "content": "a"}],
    [{"role": "two words", "content": "a"}],
    [{"role": "<|im_end|>", "content": "a"}],
    [{"role": "r" * 65, "content": "a"}],
    [{"role": "critic"}],
    [{"role": "critic", "content": "a", "tool_calls": [CALL]}],
    [{"role": None, "content": "a"}],
    [{"role": "user"}],
    [{"role": "user", "content": None}],
    [{"role": "user", "content": 1}],
    [{"role": "user", "content": []}],
    [{"role": "user", "content": ["a"]}],
    [{"role": "user", "content": [{"type": "text"}]}],
    [{"role": "user", "content": [{"text": "a"}]}],
    [{"role": "user", "content": [{**PART, "more": 1}]}],
    [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}],
    [{"role": "user", "content": [{"type": "refusal", "refusal": "x"}]}],
    [{"role": "user", "content": "a", "name": 1}],
    [{"role": "user", "content": "a", "tool_call_id": "1"}],
    [{"role": "tool", "content": "a"}],
    [{"role": "tool", "content": "a", "tool_call_id": None}],
    [{"role": "assistant"}],
    [{"role": "assistant", "content": None}],
    [{"role": "assistant", "content": None, "tool_calls": []}],
    [{"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}],
    [{"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}],
    [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "f", "arguments": {}}}]}],
    [{"role": "assistant", "tool_calls": [{**CALL, "function": {"name": "", "arguments": "{}"}}]}],
    [{"role": "assistant", "content": "a", "reasoning_content": 1}],
    [{"role": "assistant", "content": "a", "reasoning": 1}],
    [{"role": "user", "content": [{**PART, "cache_control": {"type": "forever"}}]}],
    [{"role": "assistant", "content": "a", "refusal": "no"}],
)
NO_PROMPTS = (None, [], [[]], [["a"]], [None], ["a", 1], [1, "a"], [1, [1]], [-1], [True], [1.5], 1, {}, ["a"] * 2049)
PROMPTS = ("", "a", ["a", ""], [1, 2], [[1], [2, 3]], ["a"] * 2048)

TABLES: dict[type[BaseModel], Table] = {
    chat.REQUEST: GENERATION
    | TEMPLATED
    | CONTEXT_FIELDS
    | {
        "messages": (MESSAGES, (*NO_MESSAGES, None)),
        "enable_thinking": ((True, False), NO_BOOLEANS),
        "include_reasoning": ((True, False), NO_BOOLEANS),
        "include_drafts": ((False,), NO_BOOLEANS),
        "logprobs": ((True, False), NO_BOOLEANS),
        "top_logprobs": ((0, 20), (-1, 21, *NO_INTEGERS)),
        "metadata": (
            ({}, {"a": "b"}, {"k" * 64: "v" * 512}),
            ({"a": 1}, {"a": None}, {"k" * 65: "v"}, {"k": "v" * 513}, {str(key): "" for key in range(17)}, [], "a"),
        ),
        "safety_identifier": (("somebody", ""), NO_STRINGS),
        "prompt_cache_key": (("my prompts", ""), NO_STRINGS),
        "tools": (([], [TOOL], [TOOL, {"type": "function", "function": {"name": "a-B_9"}}]), NO_TOOLS),
        "tool_choice": (
            ("none", "auto", "required", {"type": "function", "function": {"name": "f"}}),
            ("any", 1, [], {}, {"type": "function"}, {"type": "function", "name": "f"}, {"type": "allowed_tools"}),
        ),
        "parallel_tool_calls": ((True, False), (1, 0, "true")),
        "functions": (([],), ([{"name": "f"}], {})),
        "function_call": (("none", "auto"), ({"name": "f"},)),
        "store": ((True, False), NO_BOOLEANS),
        "service_tier": (("auto", "default"), ("flex", "priority", 1)),
        "modalities": ((["text"],), (["text", "audio"], ["audio"], [], "text")),
        "audio": ((), ({"voice": "alloy", "format": "wav"}, {})),
        "verbosity": (("medium",), ("low", "high", 1)),
        "thinking_token_budget": ((0, 5), (-1, 1.5, "5", True)),
        "reasoning_budget": ((-1, 0, 5), (-2, 1.5, "5", True)),
        "reasoning_effort": (("none", "minimal", "low", "medium", "high", "xhigh"), ("", "most", 1, True)),
        "prediction": ((), ({"type": "content", "content": "a"},)),
        "web_search_options": ((), ({},)),
        "moderation": ((), ({"model": "m"},)),
        "prompt_cache_options": ((), ({"mode": "explicit"}, {})),
        "prompt_cache_retention": (("in_memory",), ("24h",)),
    },
    completions.REQUEST: GENERATION
    | {
        "prompt": (PROMPTS, NO_PROMPTS),
        "max_tokens": ((1, 5.0, 2**31 - 1), (-1, 2**31, *NO_INTEGERS)),
        "echo": ((True, False), NO_BOOLEANS),
        "logprobs": ((0, 5, 20), (-1, 21, *NO_INTEGERS)),
        "suffix": (("",), (" and so on", 1, [])),
    },
    embeddings.REQUEST: {
        "model": GENERATION["model"],
        "input": (PROMPTS, NO_PROMPTS),
        "encoding_format": (("float", "base64"), ("int8", "", 1, True)),
        "pooling": (("mean", "last"), ("cls", 1)),
        "truncate_prompt_tokens": GENERATION["truncate_prompt_tokens"],
        "user": GENERATION["user"],
        "dimensions": ((), (256, "256")),
    },
    tokenizer_routes.TokenizeRequest: TEMPLATED
    | {
        "model": (("m",), NO_STRINGS),
        "prompt": (("", "a"), (1, ["a"], True, {})),
        "messages": (MESSAGES, NO_MESSAGES),
        "add_special_tokens": ((True, False), NO_BOOLEANS),
        "return_token_strs": ((True, False), NO_BOOLEANS),
    },
    tokenizer_routes.DetokenizeRequest: {
        "model": (("m",), NO_STRINGS),
        "tokens": (([], [0, 7]), (None, [-1], [2**31], ["a"], [True], "a", 1)),
    },
}
BASES: dict[type[BaseModel], dict[str, Any]] = {
    chat.REQUEST: CHAT,
    completions.REQUEST: TEXT,
    embeddings.REQUEST: EMBED,
    tokenizer_routes.TokenizeRequest: {"prompt": "a"},
    tokenizer_routes.DetokenizeRequest: {"tokens": [1]},
}
REQUIRED = {"messages", "prompt", "input", "tokens"}
# Fields that another one has to stand beside, or must not.
BESIDE: dict[str, dict[str, Any]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "tool_choice": {"tools": [TOOL]},
}


def bodies(place: int) -> list[Any]:
    return [
        pytest.param(schema, *row.values, id=f"{schema.__name__}-{row.id}")
        for schema, table in TABLES.items()
        for row in rows(table, place)
    ]


def body_with(schema: type[BaseModel], field: str, value: Any) -> dict[str, Any]:
    body = BASES[schema] | BESIDE.get(field, {}) | {field: value}
    if schema is tokenizer_routes.TokenizeRequest and field in {"messages", *TEMPLATED}:
        body = {"messages": CHAT["messages"], field: value}
    return body


CHECKED = {schema: Checked(schema) for schema in TABLES}


@pytest.mark.parametrize("schema", TABLES)
def test_the_tables_have_every_field(schema: type[BaseModel]) -> None:
    assert set(TABLES[schema]) == set(schema.model_fields)


@pytest.mark.parametrize(("schema", "field", "value"), bodies(0))
def test_taken(schema: type[BaseModel], field: str, value: Any) -> None:
    CHECKED[schema].takes(body_with(schema, field, value))


@pytest.mark.parametrize(("schema", "field", "value"), bodies(1))
def test_refused(schema: type[BaseModel], field: str, value: Any) -> None:
    CHECKED[schema].refuses(body_with(schema, field, value), field)


@pytest.mark.parametrize("schema", TABLES)
def test_null_is_as_good_as_nothing(schema: type[BaseModel]) -> None:
    optional = {name: None for name, field in schema.model_fields.items() if not field.is_required()}

    nulls = parse(schema, raw(optional | BASES[schema]))

    assert nulls == parse(schema, raw(BASES[schema]))
    assert {name for name, field in schema.model_fields.items() if field.is_required()} <= REQUIRED


@pytest.mark.parametrize(
    ("schema", "more", "param"),
    [
        (chat.REQUEST, {"stream_options": {"include_usage": True}}, "stream_options"),
        (chat.REQUEST, {"stream_options": {}, "stream": False}, "stream_options"),
        (chat.REQUEST, {"top_logprobs": 0}, "top_logprobs"),
        (chat.REQUEST, {"top_logprobs": 1, "logprobs": False}, "top_logprobs"),
        (chat.REQUEST, {"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        (completions.REQUEST, {"max_tokens": 5, "max_completion_tokens": 6}, "max_completion_tokens"),
        (chat.REQUEST, {"best_of": 2}, "best_of"),
        (
            chat.REQUEST,
            {"messages": [{"role": "assistant", "content": "", "reasoning": "a", "reasoning_content": "b"}]},
            "messages[0].reasoning",
        ),
        (chat.REQUEST, {"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
        (chat.REQUEST, {"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        (chat.REQUEST, {"tool_choice": "required"}, "tool_choice"),
        (chat.REQUEST, {"tool_choice": {"type": "function", "function": {"name": "f"}}, "tools": []}, "tool_choice"),
        (chat.REQUEST, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
        (chat.REQUEST, {"chat_template_kwargs": {"bos_token": "x"}}, "chat_template_kwargs"),
        (chat.REQUEST, {"chat_template_kwargs": {"a": [[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}}, "chat_template_kwargs"),
        (completions.REQUEST, {"best_of": 2}, "best_of"),
        (completions.REQUEST, {"best_of": 1, "n": 2}, "best_of"),
        (completions.REQUEST, {"max_tokens": 0}, "max_tokens"),
        (completions.REQUEST, {"max_tokens": 0, "logprobs": 1, "echo": False}, "max_tokens"),
        (tokenizer_routes.TokenizeRequest, {"messages": CHAT["messages"]}, "prompt"),
        (tokenizer_routes.TokenizeRequest, {"prompt": None}, "prompt"),
        (tokenizer_routes.TokenizeRequest, {"add_generation_prompt": True}, "add_generation_prompt"),
        (
            tokenizer_routes.TokenizeRequest,
            {"prompt": None, "messages": CHAT["messages"], "add_special_tokens": True},
            "add_special_tokens",
        ),
    ],
)
def test_fields_that_do_not_go_together(schema: type[BaseModel], more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(schema, raw(BASES[schema] | more))

    assert caught.value.param == param


@pytest.mark.parametrize(
    ("schema", "more"),
    [
        (chat.REQUEST, {"max_tokens": 5, "max_completion_tokens": 5}),
        (chat.REQUEST, {"continue_final_message": True, "add_generation_prompt": False}),
        (completions.REQUEST, {"best_of": 3, "n": 3}),
        (completions.REQUEST, {"echo": True, "stream": True}),
        (completions.REQUEST, {"echo": True, "logprobs": 2, "stream": True}),
        (completions.REQUEST, {"echo": True, "max_tokens": 0, "logprobs": 2}),
        (completions.REQUEST, {"prompt_logprobs": 0, "max_tokens": 0.0}),
        (tokenizer_routes.TokenizeRequest, {"prompt": None, "messages": CHAT["messages"], "add_special_tokens": False}),
    ],
)
def test_fields_that_do(schema: type[BaseModel], more: dict[str, Any]) -> None:
    parse(schema, raw(BASES[schema] | more))


def test_the_neutral_values_are_those_of_the_table() -> None:
    """The table is what people read; a field that is in it must be checked by it."""
    for schema, table in (
        (chat.REQUEST, ignored_fields.CHAT),
        (chat.REQUEST, ignored_fields.GENERATION),
        (completions.REQUEST, ignored_fields.GENERATION),
        (completions.REQUEST, ignored_fields.COMPLETIONS),
        (embeddings.REQUEST, ignored_fields.EMBEDDINGS),
    ):
        for field, inert in table.items():
            assert inert in schema.model_fields[field].metadata
            assert TABLES[schema][field][0] == inert.accepts


def test_an_image_is_refused_for_its_type() -> None:
    content = [PART, {"type": "image_url", "image_url": {"url": "x"}}]
    with pytest.raises(InvalidRequest) as caught:
        parse(chat.REQUEST, raw({**CHAT, "messages": [{"role": "user", "content": content}]}))

    assert caught.value.param == "messages[0].content[1].type"
