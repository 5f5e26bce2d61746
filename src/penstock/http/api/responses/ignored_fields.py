"""Fields of this API that Penstock does not act on, and the values of them that ask for nothing; see
`http.api.openai.ignored_fields`."""

from __future__ import annotations

from typing import Literal

from penstock.http.api.ignored_fields import IgnoredField

RESPONSES = {
    # A request runs while its client waits, and keeps what it keeps under its own id.
    "background": IgnoredField((False,)),
    "conversation": IgnoredField(),
    "prompt": IgnoredField(),
    # A conversation that does not fit is an error; nothing is left out of it.
    "truncation": IgnoredField(("disabled",)),
    "context_management": IgnoredField(([],)),
    "service_tier": IgnoredField(("auto", "default")),
    "max_tool_calls": IgnoredField(),  # of OpenAI's own tools
    "moderation": IgnoredField(),
    "prompt_cache_options": IgnoredField(),
    "prompt_cache_retention": IgnoredField(("in_memory",)),  # which is what the prefix cache does
}

REASONING = {
    "context": IgnoredField(("auto",)),
    "mode": IgnoredField(("standard",)),
}

# Accepted with any value, with a warning where the value asks for something.
HINTS = {
    "verbosity": "How much to say. Not used: the model says as much as it does.",
    "summary": "How to sum up the thoughts. Not used: they come whole.",
}

TOOL = {
    "allowed_callers": IgnoredField((["direct"],)),
    "output_schema": IgnoredField(),
}

# What OpenAI's answers have in their items: clients send them back as they came.
FUNCTION_CALL = {
    "caller": IgnoredField(({"type": "direct"},)),
}

LOGPROBS = "message.output_text.logprobs"
PACKED_THOUGHTS = "reasoning.encrypted_content"

# The others would be more of the results of tools that nobody can call here: there is nothing to add.
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
]
