"""Fields of Anthropic's API that Penstock does not act on, and the values of them that ask for nothing.

As `http.api.ignored_fields` has it: these values are accepted, as null is everywhere, and any other is refused with an
error that names the field.
"""

from __future__ import annotations

from penstock.http.api.ignored_fields import IgnoredField

MESSAGES = {
    # There is one tier and one speed of service, in one place.
    "service_tier": IgnoredField(("auto", "standard_only")),
    "speed": IgnoredField(("standard",)),
    "inference_geo": IgnoredField(),
    # What Anthropic runs beside the model.
    "container": IgnoredField(),
    "mcp_servers": IgnoredField(([],)),
    "diagnostics": IgnoredField(),
    # Conversations are not kept: the error says so in a way on which Anthropic's SDK sends them whole (`problems`).
    "thread": IgnoredField(),
}

# `eager_input_streaming` asks for arguments without a check that they are JSON; they are streamed as they are made, and
# are JSON, either way.
TOOL = {
    "eager_input_streaming": IgnoredField((True, False)),
    "allowed_callers": IgnoredField((["direct"],)),
    "input_examples": IgnoredField(([],)),
}

# What Anthropic's answers have in their blocks: clients send them back as they came.
TEXT_BLOCK = {
    "citations": IgnoredField(([],)),
}
TOOL_USE_BLOCK = {
    "caller": IgnoredField(({"type": "direct"},)),
    "toolset_name": IgnoredField(),
}

THINKING = {
    "display": IgnoredField(("summarized",)),  # the default; thoughts come whole
}

# Accepted with any value.
HINTS = {
    "metadata": "The client's name for its end user. Taken for compatibility, not used.",
}
