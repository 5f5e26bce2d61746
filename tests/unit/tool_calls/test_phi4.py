from __future__ import annotations

import json

from helpers.marker_vocabulary import Vocabularies
from helpers.tool_conversation import CONVERSATION, TOOL, messages_for
from penstock.flow import OutputFormat, Tool, ToolUse
from penstock.prompt.answer_grammar import answer_constraint
from penstock.tool_calls.registry import SYNTAXES, output_markers
from penstock.tool_calls.syntax import describe_tool

TOOLS = ToolUse(tools=(Tool(name="weather"), Tool(name="now")))


def test_phi_has_tools_beside_the_system_message() -> None:
    made = messages_for(CONVERSATION, SYNTAXES["phi4"], (TOOL,))

    assert json.loads(made[0]["tools"]) == [describe_tool(TOOL)]
    assert made[0]["content"] == "Be brief."
    assert made[2]["content"].startswith('Wait.\n<|tool_call|>[{"name": "weather", "arguments": {"city": "Oslo"}}, ')
    assert [message["role"] for message in made[3:5]] == ["tool_response"] * 2
    assert messages_for([CONVERSATION[1]], SYNTAXES["phi4"], (TOOL,))[0]["role"] == "system"


def test_both_marks_of_a_list(vocabularies: Vocabularies) -> None:
    output_format = OutputFormat(tool_calls="phi4")
    words = vocabularies.of(output_markers(output_format))
    constraint = answer_constraint(output_format, TOOLS, None, words.tokenizer.mark)
    listed = '[{"name": "now", "arguments": {}}, {"name": "now", "arguments": {}}]'

    for text in (f"Well. <|tool_call|>{listed}<|/tool_call|>", f"functools{listed}", "import functools\n"):
        assert words.takes(constraint, text), text
    assert not words.takes(constraint, 'functools[{"name": "never"}]')
