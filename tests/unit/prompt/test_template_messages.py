from __future__ import annotations

from typing import Any

import pytest

from helpers.tool_conversation import CALL, CONVERSATION, TOOL, WRITTEN, messages_for
from penstock.errors import InvalidRequest
from penstock.flow import Message, Tool
from penstock.prompt.template_messages import merge_assistant_messages, template_tools
from penstock.tool_calls.registry import SYNTAXES


def test_templates_that_know_tools_get_objects_and_names() -> None:
    made = messages_for(CONVERSATION, SYNTAXES["hermes"], (TOOL,))

    assert [call["function"] for call in made[2]["tool_calls"]] == [
        {"name": "weather", "arguments": {"city": "Oslo"}},
        {"name": "now", "arguments": {}},
    ]
    assert [message.get("name") for message in made[3:5]] == ["weather", "clock"]
    assert made[0] == CONVERSATION[0]
    assert isinstance(CONVERSATION[2]["tool_calls"][0]["function"]["arguments"], str)  # the client's own is untouched


def test_a_message_without_calls_says_nothing_of_them() -> None:
    """Llama's template asks whether there is such a key."""
    for calls in (None, []):
        assert messages_for([{"role": "assistant", "content": "Hi", "tool_calls": calls}], SYNTAXES["llama3_json"]) == [
            {"role": "assistant", "content": "Hi"}
        ]


def test_calls_without_text() -> None:
    (message,) = messages_for([{"role": "assistant", "content": None, "tool_calls": [CALL]}], SYNTAXES["hermes"])
    assert message["content"] == ""
    assert messages_for([{"role": "assistant", "content": None, "tool_calls": [CALL]}])[0]["content"] == WRITTEN


def test_a_tool_always_has_what_templates_look_for() -> None:
    assert template_tools([Tool(name="now")]) == [
        {
            "type": "function",
            "function": {"name": "now", "description": "", "parameters": {"type": "object", "properties": {}}},
        }
    ]


@pytest.mark.parametrize(
    ("call", "param"),
    [
        ({**CALL, "function": {"name": "f", "arguments": [1]}}, ".function.arguments"),
        ({**CALL, "function": {"name": "f", "arguments": None}}, ".function.arguments"),
        ({**CALL, "function": {"name": "f"}}, ""),
        ({"id": "1"}, ""),
        (5, ""),
    ],
)
def test_calls_that_are_none_are_refused(call: Any, param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        messages_for([CONVERSATION[1], {"role": "assistant", "content": "", "tool_calls": [CALL, call]}])

    assert caught.value.param == f"messages[1].tool_calls[1]{param}"


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "Os', "[1]", "null", "Oslo", "[" * 100_000, '{"a":' * 80 + "1" + "}" * 80, '{"a": "\\ud800"}'],
)
def test_arguments_that_are_no_object_are_raw(arguments: str) -> None:
    """A call that was cut at the length limit comes back with the next request."""
    cut = {**CALL, "function": {"name": "f", "arguments": arguments}}
    made = messages_for([{"role": "assistant", "content": "", "tool_calls": [CALL, cut]}], SYNTAXES["hermes"])
    assert [call["function"]["arguments"] for call in made[0]["tool_calls"]] == [{"city": "Oslo"}, f"raw {arguments}"]


def test_what_only_thoughts_set_apart_is_one_message_where_none_are_messages_for() -> None:
    first: Message = {"role": "assistant", "content": "a", "reasoning_content": "x", "tool_calls": [1]}
    second: Message = {"role": "assistant", "content": "b", "reasoning_content": "y", "tool_calls": [2]}
    silent: Message = {"role": "assistant", "content": "", "reasoning_content": "z"}
    user: Message = {"role": "user", "content": "c"}
    joined = {"role": "assistant", "content": "a\nb", "reasoning_content": "x", "tool_calls": [1, 2]}

    assert merge_assistant_messages([user, first, second, silent, user]) == [user, joined, user]
    apart: list[list[Message]] = [
        [first, user, second],
        [first, {"role": "assistant", "content": "b"}],  # the client's own doing
        [{**user, "reasoning_content": "x"}, {**user, "reasoning_content": "y"}],
        [{**first, "content": ["a"]}, second],
    ]
    for messages in apart:
        assert merge_assistant_messages(messages) == messages
    assert first["content"] == "a"
