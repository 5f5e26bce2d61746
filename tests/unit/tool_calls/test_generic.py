from __future__ import annotations

import json

from helpers.tool_conversation import CONVERSATION, TOOL, WRITTEN, messages_for
from penstock.flow import Message
from penstock.tool_calls.syntax import describe_tool


def test_in_plain_words_where_the_template_knows_nothing_of_tools() -> None:
    made = messages_for(CONVERSATION)

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

    system, user = messages_for(asked, tools=(TOOL,))
    assert (system["role"], user) == ("system", asked[0])
    assert json.dumps(describe_tool(TOOL)) in system["content"]
    assert "<tool_call>\n{" in system["content"]

    joined, _ = messages_for([CONVERSATION[0], *asked], tools=(TOOL,))
    assert joined == {"role": "system", "content": f"Be brief.\n\n{system['content']}"}

    (first,) = messages_for(asked, tools=(TOOL,), system_role=False)
    assert first == {"role": "user", "content": f"{system['content']}\n\nOslo?"}
