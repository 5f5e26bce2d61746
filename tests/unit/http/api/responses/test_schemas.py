"""Every field of the body: values that are taken, and values that are refused with an error that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.responses.input_token_count_params import InputTokenCountParams
from openai.types.responses.response_create_params import ResponseCreateParamsBase

from helpers.schema_tables import CONTEXT_FIELDS, NO_BOOLEANS, NO_INTEGERS, NO_NUMBERS, NO_STRINGS, Checked, Table, rows
from penstock.errors import InvalidRequest
from penstock.http.api.responses import ignored_fields, item_schemas, schemas
from penstock.http.api.responses.schemas import InputTokensRequest, ResponseRequest
from penstock.http.parse.schema import parse

BASE: dict[str, Any] = {"model": "m", "input": "a"}
SAY = {"role": "user", "content": "a"}
IN = {"type": "input_text", "text": "a"}
OUT = {"type": "output_text", "text": "a"}
CALL = {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "3"}
CUSTOM = {"type": "custom_tool_call", "call_id": "c1", "name": "f", "input": "a"}
DONE = {"type": "custom_tool_call_output", "call_id": "c1", "output": "3"}
THOUGHT = {"type": "reasoning", "summary": []}
TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
SCHEMA = {"type": "json_schema", "name": "it", "schema": {"type": "object"}}

COMMON: Table = {
    "model": (("m", ""), NO_STRINGS),
    "input": (
        (
            "",
            "a",
            [SAY],
            [{**SAY, "type": "message", "id": "msg_1", "status": "completed"}],
            [{"role": "developer", "content": [IN, IN]}, {"role": "system", "content": "b"}],
            [{"role": "assistant", "content": [OUT, {**OUT, "annotations": [], "logprobs": []}], "phase": None}],
            [{"role": "assistant", "content": [{**OUT, "annotations": [{}], "logprobs": [{}]}], "phase": "commentary"}],
            [{"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "phase": "final_answer"}],
            [{"role": "assistant", "content": [{**OUT, "parsed": {}}]}, {**CALL, "parsed_arguments": {"a": 1}}],
            [CALL, {**CALL, "id": "fc_1", "status": "completed"}, RESULT, {**RESULT, "output": [IN]}],
            [THOUGHT, {**THOUGHT, "id": "rs_1", "content": [{"type": "reasoning_text", "text": "hm"}]}],
            [{**THOUGHT, "encrypted_content": None, "summary": [{"type": "summary_text", "text": "hm"}]}],
            [{**THOUGHT, "encrypted_content": "x", "content": [{"type": "text", "text": "hm"}]}],
            [
                {**CALL, "namespace": "mcp"},
                CUSTOM,
                {**CUSTOM, "id": "ctc_1"},
                {**DONE, "name": "f"},
                {**DONE, "output": [IN]},
            ],
            [{"type": "local_shell_call", "call_id": "c1", "action": {"command": ["ls"]}, "status": "completed"}],
            [{"type": "local_shell_call_output", "id": "c1", "output": "a.py"}],
            [{"type": "web_search_call", "id": "x", "action": {}}, {"type": "tool_search_call", "call_id": None}],
            [{"type": "image_generation_call", "id": "x", "result": "y"}, {"type": "tool_search_output", "tools": []}],
        ),
        (
            None,
            1,
            {},
            [],
            ["a"],
            [{"content": "a"}],
            [{"role": "tool", "content": "a"}],
            [{**SAY, "content": None}],
            [{**SAY, "content": []}],
            [{**SAY, "content": [{"type": "input_image", "image_url": "x"}]}],
            [{**SAY, "content": [{"type": "input_file", "file_id": "x"}]}],
            [{**SAY, "content": [{**OUT, "annotations": [1]}]}],
            [{**SAY, "phase": "first"}],
            [{**CUSTOM, "input": {}}],
            [{"type": "local_shell_call", "call_id": "c1", "action": "ls"}],
            [{"type": "compaction", "encrypted_content": "x"}],
            [{**SAY, "name": "Ann"}],
            [{**SAY, "status": "done"}],
            [{"type": "item_reference", "id": "msg_1"}],
            [{"type": "web_search_call", "id": 1}],
            [{**CALL, "arguments": {}}],
            [{**CALL, "call_id": ""}],
            [{**RESULT, "output": [{"type": "input_image"}]}],
            [{**THOUGHT, "encrypted_content": 1}],
        ),
    ),
    "instructions": (("a", ""), NO_STRINGS),
    "previous_response_id": (("resp_1",), NO_STRINGS),
    "tools": (
        (
            [],
            [TOOL],
            [{"type": "function", "name": "f"}],
            [{**TOOL, "description": "it", "defer_loading": True, "parameters": None, "strict": None}],
            [{"type": "custom", "name": "f", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}}, TOOL],
            [{"type": "namespace", "name": "f", "tools": [TOOL]}, {"type": "web_search", "external_web_access": False}],
            [{"type": "image_generation", "output_format": "png"}, {"type": "local_shell"}, {"type": "tool_search"}],
        ),
        (
            {},
            [{}],
            [{"type": "function"}],
            [{"type": "file_search"}],
            [{"type": "mcp", "server_label": "x", "server_url": "y"}],
            [{"type": "function", "function": {"name": "f"}}],
            [{**TOOL, "parameters": []}],
            [{**TOOL, "output_schema": {}}],
        ),
    ),
    "tool_choice": (
        ("none", "auto", "required", {"type": "function", "name": "f"}),
        ("any", 1, {}, {"type": "web_search"}, {"type": "function"}, {"type": "allowed_tools", "mode": "auto"}),
    ),
    "parallel_tool_calls": ((True, False), NO_BOOLEANS),
    "text": (
        (
            {},
            {"format": {"type": "text"}},
            {"format": {"type": "json_object"}},
            {"format": SCHEMA},
            {"format": {**SCHEMA, "strict": True, "description": "it"}, "verbosity": "medium"},
            {"verbosity": "low"},
        ),
        (
            "text",
            {"format": "json"},
            {"format": {"type": "xml"}},
            {"format": {"type": "json_schema", "name": "it"}},
            {"format": {**SCHEMA, "name": "a b"}},
            {"format": {"type": "json_schema", "json_schema": SCHEMA}},
            {"verbosity": "loud"},
        ),
    ),
    "reasoning": (
        ({}, {"effort": "none"}, {"effort": "high", "summary": "auto"}, {"summary": "detailed"}),
        ({"effort": "some"}, {"summary": "long"}, "high", {"budget": 3}),
    ),
    "chat_template_kwargs": (({}, {"enable_thinking": False}), ([], "x")),
    "conversation": ((), ("conv_1", {"id": "conv_1"})),
    "truncation": (("disabled",), ("auto",)),
}
TABLE: Table = (
    COMMON
    | CONTEXT_FIELDS
    | {
        "truncation": (("auto", "disabled"), ("always", True)),
        "store": ((True, False), NO_BOOLEANS),
        "max_output_tokens": ((1, 2**31 - 1), (0, -1, 2**31, *NO_INTEGERS)),
        "temperature": ((0, 2, 0.5), (-0.1, 2.1, *NO_NUMBERS)),
        "top_p": ((0.1, 1), (0, 1.1, *NO_NUMBERS)),
        "top_k": ((-1, 0, 40), (-2, 2**31, *NO_INTEGERS)),
        "presence_penalty": ((0, -2, 1.5), (-2.1, 2.1, *NO_NUMBERS)),
        "frequency_penalty": ((0, -2, 1.5), (-2.1, 2.1, *NO_NUMBERS)),
        "seed": ((-(2**63), 2**63 - 1), (2**63, *NO_INTEGERS)),
        "stop": (("a", ["a", "b"], []), ("", 1, [""], ["a"] * 5, {})),
        "ignore_eos": ((True, False), NO_BOOLEANS),
        "speculation": ((True, False), NO_BOOLEANS),
        "stream": ((True, False), NO_BOOLEANS),
        "stream_options": (
            ({}, {"include_obfuscation": False}, {"reasoning_summary_delivery": "sequential_cutoff"}),
            ({"include_obfuscation": True}, {"include_usage": True}, 1),
        ),
        "include": (
            ([], ["reasoning.encrypted_content", "web_search_call.action.sources"], ["message.output_text.logprobs"]),
            (["x"], "x"),
        ),
        "metadata": (({}, {"a": "b"}), ({"a": 1}, {"k" * 65: "v"}, [])),
        "user": (("somebody", ""), NO_STRINGS),
        "safety_identifier": (("somebody", ""), NO_STRINGS),
        "prompt_cache_key": (("my prompts", ""), NO_STRINGS),
        "background": ((False,), (True,)),
        "prompt": ((), ({"id": "pmpt_1"},)),
        "context_management": (([],), ([{"type": "compaction"}],)),
        "service_tier": (("auto", "default"), ("flex", "priority")),
        "max_tool_calls": ((), (1,)),
        "top_logprobs": ((0, 20), (-1, 21, *NO_INTEGERS)),
        "client_metadata": (({}, {"session_id": "x", "n": 1}), ("x", [])),
        "moderation": ((), ({"model": "m"},)),
        "prompt_cache_options": ((), ({},)),
        "prompt_cache_retention": (("in_memory",), ("24h",)),
    }
)
BESIDE: dict[str, dict[str, Any]] = {"stream_options": {"stream": True}, "tool_choice": {"tools": [TOOL]}}
BESIDE["top_logprobs"] = {"include": ["message.output_text.logprobs"]}


@pytest.fixture(scope="module")
def checked() -> Checked:
    return Checked(ResponseRequest)


def test_the_table_has_every_field() -> None:
    assert set(TABLE) == set(ResponseRequest.model_fields)
    assert set(COMMON) == set(InputTokensRequest.model_fields)


@pytest.mark.parametrize(("field", "value"), rows(TABLE, 0))
def test_taken(checked: Checked, field: str, value: Any) -> None:
    checked.takes(BASE | BESIDE.get(field, {}) | {field: value})


@pytest.mark.parametrize(("field", "value"), rows(COMMON, 0))
def test_taken_to_be_counted(field: str, value: Any) -> None:
    Checked(InputTokensRequest).takes(BASE | BESIDE.get(field, {}) | {field: value})


def test_a_prompt_to_be_counted() -> None:
    count = Checked(InputTokensRequest)
    count.takes({"previous_response_id": "resp_1"})
    with pytest.raises(InvalidRequest) as caught:
        parse(InputTokensRequest, b'{"instructions": "a"}')
    assert caught.value.param == "input"
    for field in set(TABLE) - set(COMMON):
        count.refuses({**BASE, field: 5}, field)


@pytest.mark.parametrize(("field", "value"), rows(TABLE, 1))
def test_refused(checked: Checked, field: str, value: Any) -> None:
    checked.refuses(BASE | BESIDE.get(field, {}) | {field: value}, field)


def test_null_is_as_good_as_nothing(checked: Checked) -> None:
    optional = {name: None for name, field in ResponseRequest.model_fields.items() if not field.is_required()}

    assert checked.takes(optional | BASE) == checked.takes(BASE)
    assert set(ResponseRequest.model_fields) - set(optional) == {"input"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"stream_options": {}}, "stream_options"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "function", "name": "f"}, "tools": []}, "tool_choice"),
        ({"tool_choice": "required", "tools": [{"type": "web_search"}]}, "tool_choice"),
        ({"top_logprobs": 1}, "top_logprobs"),
        ({"top_logprobs": 1, "include": ["reasoning.encrypted_content"]}, "top_logprobs"),
    ],
)
def test_fields_that_do_not_go_together(more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(ResponseRequest, json.dumps(BASE | more).encode())

    assert caught.value.param == param


def test_the_neutral_values_are_those_of_the_table() -> None:
    """The table is what people read; a field that is in it must be checked by it."""
    for schema, table in (
        (ResponseRequest, ignored_fields.RESPONSES),
        (schemas.ReasoningOptions, ignored_fields.REASONING),
        (schemas.ResponseTool, ignored_fields.TOOL),
        (item_schemas.FunctionCallItem, ignored_fields.FUNCTION_CALL),
    ):
        for field, inert in table.items():
            assert inert in schema.model_fields[field].metadata
    for field, inert in ignored_fields.RESPONSES.items():
        assert TABLE[field][0] == inert.accepts


def test_every_field_of_the_sdk_is_known_or_told_apart() -> None:
    """What the SDK can send is here, but for what is about models that make or see images, or about OpenAI's own."""
    assert set(InputTokenCountParams.__annotations__) - {"personality"} <= set(COMMON)
    assert set(ResponseCreateParamsBase.__annotations__) - {"image", "access_programs"} <= set(TABLE)


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"tools": [{"type": "file_search"}]}, "tools[0].type", 'must be one of "function"'),
        ({"input": [SAY, {"type": "item_reference", "id": "x"}]}, "input[1].type", 'one of "message", "function_call"'),
        ({"input": [{**SAY, "content": [IN, {"type": "input_image"}]}]}, "input[0].content[1].type", '"input_text"'),
        ({"input": [{**CALL, "name": 1}]}, "input[0].name", "must be a string"),
        ({"text": {"format": {**SCHEMA, "schema": 1}}}, "text.format.schema", "must be an object"),
        ({"tool_choice": {"type": "function", "name": 1}, "tools": [TOOL]}, "tool_choice.name", "must be a string"),
    ],
)
def test_words(checked: Checked, more: dict[str, Any], param: str, words: str) -> None:
    error = checked.refuses(BASE | more, next(iter(more)))

    assert error.param == param
    assert words in error.message
