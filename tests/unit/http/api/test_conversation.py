from __future__ import annotations

import pytest

from penstock.errors import InvalidRequest
from penstock.http.api.conversation import ConversationBuilder

CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": {"a": 1}}}


def test_pieces_of_one_speaker_are_one_turn() -> None:
    turns = ConversationBuilder()
    turns.add_text("user", "a")
    turns.add_text("user", "b")
    turns.add_reasoning("h")
    turns.add_reasoning("m")
    turns.add_tool_call("c1", "f", {"a": 1})
    turns.add_text("assistant", "c")
    turns.add_tool_result("c1", "3", param="x")
    turns.add_text("user", "d")

    assert turns.messages == [
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c", "reasoning_content": "hm", "tool_calls": [CALL]},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "f"},
        {"role": "user", "content": "d"},
    ]


def test_pieces_that_say_nothing_open_a_turn_and_part_what_follows() -> None:
    turns = ConversationBuilder()
    for text in ("", "a", "", "b"):
        turns.add_text("user", text)
    assert turns.messages == [{"role": "user", "content": "a\n\nb"}]
    turns.add_text("user", "c")
    turns.add_text("assistant", "")
    assert turns.messages == [{"role": "user", "content": "a\n\nb\nc"}, {"role": "assistant", "content": ""}]


def test_thoughts_behind_a_text_or_a_call_open_a_message() -> None:
    """So that interleaved reasoning keeps its order."""
    turns = ConversationBuilder()
    for number, text in enumerate(("a", "", "c")):
        turns.add_reasoning(f"t{number}")
        if text:
            turns.add_text("assistant", text)
        else:
            turns.add_tool_call("c1", "f", {"a": 1})
    turns.add_tool_result("c1", "3", param="x")
    turns.add_reasoning("t3")
    turns.add_reasoning("!")

    assert turns.messages == [
        {"role": "assistant", "content": "a", "reasoning_content": "t0"},
        {"role": "assistant", "content": "", "reasoning_content": "t1", "tool_calls": [CALL]},
        {"role": "assistant", "content": "c", "reasoning_content": "t2"},
        {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "f"},
        {"role": "assistant", "content": "", "reasoning_content": "t3!"},
    ]


def test_an_earlier_conversation_keeps_its_thoughts_apart_too() -> None:
    turns = ConversationBuilder([{"role": "assistant", "content": "a", "reasoning_content": "t0"}])
    turns.add_reasoning("t1")

    assert [message["reasoning_content"] for message in turns.messages] == ["t0", "t1"]


def test_what_was_said_before_is_gone_on_from_and_left_as_it_was() -> None:
    before = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    turns = ConversationBuilder(before)
    turns.add_tool_call("c2", "g", {})
    turns.add_tool_result("c1", "3", param="x")

    assert [call["id"] for call in turns.messages[1]["tool_calls"]] == ["c1", "c2"]
    assert turns.messages[2]["name"] == "f"
    assert before == [{"role": "user", "content": "a"}, {"role": "assistant", "content": "", "tool_calls": [CALL]}]


def test_a_result_of_no_call() -> None:
    with pytest.raises(InvalidRequest, match="no call before it") as caught:
        ConversationBuilder().add_tool_result("c1", "3", param="input[0].call_id")

    assert caught.value.param == "input[0].call_id"
