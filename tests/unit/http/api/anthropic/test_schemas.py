"""Every field of the bodies: values that are taken, and values that are refused with an error that names the field."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import MessageCountTokensParams
from anthropic.types.message_create_params import MessageCreateParamsBase

from helpers.schema_tables import CONTEXT_FIELDS, NO_BOOLEANS, NO_INTEGERS, NO_NUMBERS, NO_STRINGS, Checked, Table, rows
from penstock.errors import InvalidRequest
from penstock.http.api.anthropic import ignored_fields
from penstock.http.api.anthropic.schemas import (
    ClientTool,
    CountTokensRequest,
    MessagesRequest,
    TextBlock,
    ThinkWithin,
    ToolUseBlock,
)
from penstock.http.parse.schema import parse

COUNT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
BASE: dict[str, Any] = {**COUNT, "max_tokens": 5}
MARK = {"type": "ephemeral", "ttl": "1h"}
TEXT = {"type": "text", "text": "a"}
USE = {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": [1]}}
RESULT = {"type": "tool_result", "tool_use_id": "t1"}
TOOL = {"name": "f", "input_schema": {"type": "object"}}


def user(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(content)}]


def assistant(*content: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant", "content": list(content)}]


COMMON: Table = {
    "model": (("m", ""), NO_STRINGS),
    "messages": (
        (
            [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
            [{"role": "system", "content": [TEXT]}],
            user(TEXT, {**TEXT, "cache_control": MARK, "citations": [], "parsed_output": {"a": 1}}),
            user({**TEXT, "cache_control": {**MARK, "scope": "global"}}),
            assistant(),
            assistant({"type": "thinking", "thinking": "hm", "signature": ""}, TEXT, USE),
            assistant({**USE, "cache_control": {"type": "ephemeral"}, "caller": {"type": "direct"}}),
            assistant({"type": "redacted_thinking", "data": "x"}),
            user({**RESULT, "content": [TEXT, {"type": "tool_reference", "tool_name": "f"}]}),
            user(RESULT, {**RESULT, "content": "a"}, {**RESULT, "content": [TEXT], "is_error": True}, TEXT),
        ),
        (
            None,
            [],
            "a",
            ["a"],
            [{"content": "a"}],
            [{"role": "bot", "content": "a"}],
            [{"role": "user"}],
            [{"role": "user", "content": None}],
            [{"role": "user", "content": "a", "name": "Ann"}],
            user(),
            user("a"),
            user({"type": "text"}),
            user({"type": "text", "text": 1}),
            user({**TEXT, "citations": [{}]}),
            user({**TEXT, "cache_control": {"type": "forever"}}),
            user({"type": "image", "source": {"type": "url", "url": "x"}}),
            user({"type": "document", "source": {}}),
            user(USE),
            user({"type": "tool_result"}),
            user({**RESULT, "content": [{"type": "image", "source": {}}]}),
            user({**RESULT, "is_error": "no"}),
            assistant(RESULT),
            assistant({"type": "redacted_thinking"}),
            assistant({"type": "thinking", "thinking": "hm"}),
            assistant({**USE, "input": "{}"}),
            assistant({**USE, "id": ""}),
        ),
    ),
    "system": (("a", "", [TEXT], [{**TEXT, "cache_control": MARK}]), (1, {}, ["a"], [{"type": "image"}])),
    "tools": (
        (
            [],
            [TOOL],
            [{**TOOL, "description": "it", "strict": True, "type": "custom", "cache_control": MARK}],
            [{**TOOL, "defer_loading": True, "eager_input_streaming": True, "allowed_callers": ["direct"]}],
        ),
        (
            {},
            [{}],
            [{"name": "f"}],
            [{**TOOL, "name": 1}],
            [{**TOOL, "input_schema": []}],
            [{**TOOL, "defer_loading": 1}],
            [{**TOOL, "input_examples": [{}]}],
            [{"type": "web_search_20250305", "name": "web_search", "max_uses": 3}],
            [{"type": "function", "function": {"name": "f"}}],
        ),
    ),
    "tool_choice": (
        (
            {"type": "auto"},
            {"type": "any", "disable_parallel_tool_use": True},
            {"type": "tool", "name": "f"},
            {"type": "none"},
        ),
        ("auto", {}, {"type": "required"}, {"type": "tool"}, {"type": "none", "name": "f"}, []),
    ),
    "thinking": (
        (
            {"type": "disabled"},
            {"type": "adaptive"},
            {"type": "adaptive", "display": "summarized"},
            {"type": "enabled", "budget_tokens": 1024},
        ),
        (
            True,
            {"type": "enabled"},
            {"type": "enabled", "budget_tokens": 1023},
            {"type": "adaptive", "display": "omitted"},
            {"type": "disabled", "budget_tokens": 2048},
        ),
    ),
    "output_config": (
        ({}, {"effort": "low"}, {"format": {"type": "json_schema", "schema": {"type": "object"}}}),
        ({"effort": "little"}, {"format": {"type": "json_object"}}, {"format": {"type": "json_schema"}}, "low"),
    ),
    "cache_control": (({"type": "ephemeral"}, MARK), (True, {}, {"type": "x"}, {"type": "ephemeral", "ttl": "2h"})),
    "context_management": (
        (
            {},
            {"edits": []},
            {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            {"edits": [{"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}]},
            {"edits": [{"type": "clear_tool_uses_20250919", "trigger": {"type": "input_tokens", "value": 9}}]},
        ),
        (
            "all",
            {"edits": {}},
            {"edits": [{"type": "compact_20260112"}]},
            {"edits": [{"type": "clear_thinking_20251015", "keep": 1}]},
            {"edits": [{"type": "clear_tool_uses_20250919", "kep": {}}]},
        ),
    ),
}
TABLE: Table = (
    COMMON
    | CONTEXT_FIELDS
    | {
        "max_tokens": ((1, 2**31 - 1), (0, -1, 2**31, None, *NO_INTEGERS)),
        "stream": ((True, False), NO_BOOLEANS),
        "stop_sequences": (([], ["a"], ["a"] * 16), ([""], ["a"] * 17, [1], "a", {})),
        "temperature": ((0, 1, 0.5), (-0.1, 1.1, *NO_NUMBERS)),
        "top_p": ((0.1, 1), (0, 1.1, *NO_NUMBERS)),
        "top_k": ((0, 5), (-1, 2**31, *NO_INTEGERS)),
        "speculation": ((True, False), NO_BOOLEANS),
        "metadata": (
            ({}, {"user_id": "x"}, {"user_id": None}),
            ({"user": "x"}, {"user_id": 1}, {"user_id": "x" * 257}),
        ),
        "service_tier": (("auto", "standard_only"), ("priority", 1)),
        "speed": (("standard",), ("fast",)),
        "inference_geo": ((), ("eu",)),
        "container": ((), ("c1", {})),
        "mcp_servers": (([],), ([{}],)),
        "diagnostics": ((), ({},)),
        "thread": ((), ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"})),
    }
)
BESIDE: dict[str, dict[str, Any]] = {"tool_choice": {"tools": [TOOL]}}


@pytest.fixture(scope="module")
def whole() -> Checked:
    return Checked(MessagesRequest)


@pytest.fixture(scope="module")
def count() -> Checked:
    return Checked(CountTokensRequest)


def test_the_tables_have_every_field() -> None:
    assert set(TABLE) == set(MessagesRequest.model_fields)
    assert set(COMMON) == set(CountTokensRequest.model_fields)


@pytest.mark.parametrize(("field", "value"), rows(TABLE, 0))
def test_taken(whole: Checked, field: str, value: Any) -> None:
    whole.takes(BASE | BESIDE.get(field, {}) | {field: value})


@pytest.mark.parametrize(("field", "value"), rows(TABLE, 1))
def test_refused(whole: Checked, field: str, value: Any) -> None:
    whole.refuses(BASE | BESIDE.get(field, {}) | {field: value}, field)


@pytest.mark.parametrize(("field", "value"), rows(COMMON, 0))
def test_taken_to_be_counted(count: Checked, field: str, value: Any) -> None:
    count.takes(COUNT | BESIDE.get(field, {}) | {field: value})


def test_what_is_for_answers_is_not_taken_to_be_counted(count: Checked) -> None:
    for field in set(TABLE) - set(COMMON):
        count.refuses({**COUNT, field: 5}, field)


def test_null_is_as_good_as_nothing(whole: Checked) -> None:
    optional = {name: None for name, field in MessagesRequest.model_fields.items() if not field.is_required()}

    assert whole.takes(optional | BASE) == whole.takes(BASE)
    assert set(MessagesRequest.model_fields) - set(optional) == {"messages", "max_tokens"}


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"tool_choice": {"type": "auto"}, "tools": []}, "tool_choice"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "thinking"),
    ],
)
def test_fields_that_do_not_go_together(more: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(MessagesRequest, json.dumps(BASE | more).encode())

    assert caught.value.param == param


def test_depth(whole: Checked) -> None:
    def nested(levels: int) -> Any:
        return {"a": nested(levels - 1) if levels > 1 else 1}

    whole.takes({**BASE, "messages": assistant({**USE, "input": nested(64)})})
    with pytest.raises(InvalidRequest, match="64 levels"):
        parse(MessagesRequest, json.dumps({**BASE, "messages": assistant({**USE, "input": nested(65)})}).encode())


def test_the_neutral_values_are_those_of_the_table() -> None:
    """The table is what people read; a field that is in it must be checked by it."""
    for schema, table in (
        (MessagesRequest, ignored_fields.MESSAGES),
        (ClientTool, ignored_fields.TOOL),
        (TextBlock, ignored_fields.TEXT_BLOCK),
        (ToolUseBlock, ignored_fields.TOOL_USE_BLOCK),
        (ThinkWithin, ignored_fields.THINKING),
    ):
        for field, inert in table.items():
            assert inert in schema.model_fields[field].metadata
    for field, inert in ignored_fields.MESSAGES.items():
        assert TABLE[field][0] == inert.accepts


def test_every_field_of_the_sdk_is_known_or_told_apart() -> None:
    """What the SDK can send is here, but for what goes into headers or names accounts at Anthropic."""
    elsewhere = {"user_profile_id", "workspace_id"}

    assert set(MessageCreateParamsBase.__annotations__) - elsewhere <= set(TABLE)
    assert set(MessageCountTokensParams.__annotations__) - elsewhere - {"speed"} <= set(COMMON)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"tools": [{"type": "web_search_20250305", "name": "w", "max_uses": 3}]}, 'tools[0].type is "web_search'),
        ({"messages": user(TEXT, {"type": "image"})}, 'messages[0].content[1].type must be one of "text"'),
        ({"max_token": 5}, "did you mean max_tokens?"),
        ({"output_config": {"format": {"type": "json_schema", "schem": {}}}}, "did you mean schema?"),
    ],
)
def test_words(whole: Checked, more: dict[str, Any], words: str) -> None:
    assert words in whole.refuses(BASE | more, next(iter(more))).message
