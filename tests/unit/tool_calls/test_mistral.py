from __future__ import annotations

from helpers.tool_conversation import CONVERSATION, messages_for
from penstock.tool_calls.mistral import short_id
from penstock.tool_calls.registry import SYNTAXES


def test_ids_that_mistral_takes() -> None:
    made = messages_for(CONVERSATION, SYNTAXES["mistral"])
    ids = [call["id"] for call in made[2]["tool_calls"]]

    assert [message["tool_call_id"] for message in made[3:5]] == ids
    assert ids == [short_id("call_1"), short_id("call_2")]
    assert all(len(each) == 9 and each.isalnum() for each in ids)
    assert short_id("abcDEF123") == "abcDEF123"
