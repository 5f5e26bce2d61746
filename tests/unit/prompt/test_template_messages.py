from __future__ import annotations

import json
from typing import Any

import pytest

from penstock.errors import InvalidRequest
from penstock.flow import Message, Tool
from penstock.prompt.families import FAMILIES, GENERIC, Family
from penstock.prompt.template_messages import as_openai, for_template, join_answers, short_id

BY_NAME = {family.name: family for family in FAMILIES}
TOOL = Tool(name="weather", description="d", parameters={"properties": {"city": {"type": "string"}}})
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}}
OTHER = {"id": "call_2", "type": "function", "function": {"name": "now", "arguments": ""}}
WRITTEN = '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>'
CONVERSATION: list[Message] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Oslo?"},
    {"role": "assistant", "content": "Wait.", "tool_calls": [CALL, OTHER]},
    {"role": "tool", "content": "7", "tool_call_id": "call_1"},
    {"role": "tool", "content": "noon", "tool_call_id": "call_2", "name": "clock"},
    {"role": "user", "content": "Thanks."},
]


def shown(
    messages: list[Message], family: Family = GENERIC, tools: tuple[Tool, ...] = (), system_role: bool = True
) -> list[Message]:
    return for_template(messages, family, tools, lambda text: f"raw {text}", system_role=system_role)


def test_templates_that_know_tools_get_objects_and_names() -> None:
    made = shown(CONVERSATION, BY_NAME["hermes"], (TOOL,))

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
        assert shown([{"role": "assistant", "content": "Hi", "tool_calls": calls}], BY_NAME["llama 3"]) == [
            {"role": "assistant", "content": "Hi"}
        ]


def test_calls_without_text() -> None:
    (message,) = shown([{"role": "assistant", "content": None, "tool_calls": [CALL]}], BY_NAME["hermes"])
    assert message["content"] == ""
    assert shown([{"role": "assistant", "content": None, "tool_calls": [CALL]}])[0]["content"] == WRITTEN


def test_ids_that_mistral_takes() -> None:
    made = shown(CONVERSATION, BY_NAME["mistral"])
    ids = [call["id"] for call in made[2]["tool_calls"]]

    assert [message["tool_call_id"] for message in made[3:5]] == ids
    assert ids == [short_id("call_1"), short_id("call_2")]
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert short_id("abcDEF123") == "abcDEF123"


def test_in_plain_words_where_the_template_knows_nothing_of_tools() -> None:
    made = shown(CONVERSATION)

    assert made == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Oslo?"},
        {
            "role": "assistant",
            "content": f'Wait.\n{WRITTEN}\n<tool_call>\n{{"name": "now", "arguments": {{}}}}\n</tool_call>',
        },
        {
            "role": "user",
            "content": "<tool_response>\n7\n</tool_response>\n<tool_response>\nnoon\n</tool_response>\nThanks.",
        },
    ]


def test_tools_are_told_where_the_template_takes_instructions() -> None:
    asked: list[Message] = [{"role": "user", "content": "Oslo?"}]

    system, user = shown(asked, tools=(TOOL,))
    assert (system["role"], user) == ("system", asked[0])
    assert json.dumps(as_openai([TOOL])[0]["function"]) in system["content"]
    assert "<tool_call>\n{" in system["content"]

    joined, _ = shown([CONVERSATION[0], *asked], tools=(TOOL,))
    assert joined == {"role": "system", "content": f"Be brief.\n\n{system['content']}"}

    (first,) = shown(asked, tools=(TOOL,), system_role=False)
    assert first == {"role": "user", "content": f"{system['content']}\n\nOslo?"}


def test_phi_has_tools_beside_the_system_message() -> None:
    made = shown(CONVERSATION, BY_NAME["phi 4"], (TOOL,))

    assert json.loads(made[0]["tools"]) == [as_openai([TOOL])[0]["function"]]
    assert made[0]["content"] == "Be brief."
    assert made[2]["content"].startswith('Wait.\n<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}, ')
    assert [message["role"] for message in made[3:5]] == ["tool_response"] * 2
    assert shown([CONVERSATION[1]], BY_NAME["phi 4"], (TOOL,))[0]["role"] == "system"


def test_a_tool_always_has_what_templates_look_for() -> None:
    assert as_openai([Tool(name="now")]) == [
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
        shown([CONVERSATION[1], {"role": "assistant", "content": "", "tool_calls": [CALL, call]}])

    assert caught.value.param == f"messages[1].tool_calls[1]{param}"


@pytest.mark.parametrize(
    "arguments",
    ['{"city": "Os', "[1]", "null", "Oslo", "[" * 100_000, '{"a":' * 80 + "1" + "}" * 80, '{"a": "\\ud800"}'],
)
def test_arguments_that_are_no_object_are_raw(arguments: str) -> None:
    """A call that was cut at the length limit comes back with the next request."""
    cut = {**CALL, "function": {"name": "f", "arguments": arguments}}
    made = shown([{"role": "assistant", "content": "", "tool_calls": [CALL, cut]}], BY_NAME["hermes"])
    assert [call["function"]["arguments"] for call in made[0]["tool_calls"]] == [{"city": "Oslo"}, f"raw {arguments}"]


def test_what_only_thoughts_set_apart_is_one_message_where_none_are_shown() -> None:
    first: Message = {"role": "assistant", "content": "a", "reasoning_content": "x", "tool_calls": [1]}
    second: Message = {"role": "assistant", "content": "b", "reasoning_content": "y", "tool_calls": [2]}
    silent: Message = {"role": "assistant", "content": "", "reasoning_content": "z"}
    user: Message = {"role": "user", "content": "c"}
    joined = {"role": "assistant", "content": "a\nb", "reasoning_content": "x", "tool_calls": [1, 2]}

    assert join_answers([user, first, second, silent, user]) == [user, joined, user]
    apart: list[list[Message]] = [
        [first, user, second],
        [first, {"role": "assistant", "content": "b"}],  # the client's own doing
        [{**user, "reasoning_content": "x"}, {**user, "reasoning_content": "y"}],
        [{**first, "content": ["a"]}, second],
    ]
    for messages in apart:
        assert join_answers(messages) == messages
    assert first["content"] == "a"
