"""Fields of this API that Penstock does not act on, and the values of them that ask for nothing; see
`intake.openai.neutral`."""

from __future__ import annotations

from typing import Literal

from penstock.intake.inert import Inert

RESPONSES = {
    # A request runs while its client waits, and keeps what it keeps under its own id.
    "background": Inert((False,)),
    "conversation": Inert(),
    "prompt": Inert(),
    # A conversation that does not fit is an error; nothing is left out of it.
    "truncation": Inert(("disabled",)),
    "context_management": Inert(([],)),
    "service_tier": Inert(("auto", "default")),
    "max_tool_calls": Inert(),  # of OpenAI's own tools
    "top_logprobs": Inert((0,)),
    "moderation": Inert(),
    "prompt_cache_options": Inert(),
    "prompt_cache_retention": Inert(("in_memory",)),  # which is what the prefix cache does
}

TEXT = {
    "verbosity": Inert(("medium",)),  # as the model has it
}

REASONING = {
    "summary": Inert(("auto",)),  # there is none: thoughts come whole
    "generate_summary": Inert(("auto",)),
    "context": Inert(("auto",)),
    "mode": Inert(("standard",)),
}

TOOL = {
    "defer_loading": Inert((False,)),
    "allowed_callers": Inert((["direct"],)),
    "output_schema": Inert(),
}

# What OpenAI's answers have in their items: clients send them back as they came.
OUTPUT_TEXT = {
    "annotations": Inert(([],)),
    "logprobs": Inert(([],)),
}
MESSAGE = {
    "phase": Inert(("final_answer",)),
}
FUNCTION_CALL = {
    "caller": Inert(({"type": "direct"},)),
    "namespace": Inert(),
}
REASONING_ITEM = {
    "encrypted_content": Inert(),  # thoughts come in the open, and go back so
}

# More of the results of tools that nobody can call here, and of thoughts, which are never encrypted: nothing to add.
Includable = Literal[
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
]
