"""Fields of this API that Penstock does not support, with their neutral values (`http.api.ignored_fields`)."""

from __future__ import annotations

from typing import Literal

from penstock.http.api.ignored_fields import IgnoredField

RESPONSES = {
    # A request runs while its client waits, and is stored under its own id.
    "background": IgnoredField((False,)),
    "conversation": IgnoredField(),
    "prompt": IgnoredField(),
    "context_management": IgnoredField(([],)),
    "service_tier": IgnoredField(("auto", "default")),
    "max_tool_calls": IgnoredField(),  # of OpenAI's own tools
    "moderation": IgnoredField(),
    "prompt_cache_options": IgnoredField(),
    "prompt_cache_retention": IgnoredField(("in_memory",)),  # which is what the prefix cache does
}

# Where a prompt is only counted, it is counted whole.
COUNT = {
    "truncation": IgnoredField(("disabled",)),
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

# What OpenAI's responses have in their items: clients send them back unchanged.
FUNCTION_CALL = {
    "caller": IgnoredField(({"type": "direct"},)),
}

LOGPROBS = "message.output_text.logprobs"
ENCRYPTED_REASONING = "reasoning.encrypted_content"

# The others add results of OpenAI's own tools, which are not offered here: they have no effect.
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
