from __future__ import annotations

import pytest

from helpers.marker_vocabulary import Vocabularies
from penstock.flow import OutputFormat, Tool, ToolUse
from penstock.prompt.answer_grammar import answer_constraint
from penstock.tool_calls.registry import output_markers

TOOLS = ToolUse(tools=(Tool(name="weather"), Tool(name="now")))


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ('{"name": "now", "parameters": {}}', True),
        ('<|python_tag|>{"name": "now", "parameters": {}}', True),
        ("It is {noon}.", True),
        ('{"time": "noon"}', False),
        (' {"time": "noon"}', False),
        ('{"name": "now", "parameters": {}}{"name": "now", "parameters": {}}', False),
    ],
)
def test_calls_without_a_mark(text: str, taken: bool, vocabularies: Vocabularies) -> None:
    output_format = OutputFormat(tool_calls="llama3_json")
    words = vocabularies.of(output_markers(output_format))
    assert words.takes(answer_constraint(output_format, TOOLS, None, words.tokenizer.mark), text) is taken
