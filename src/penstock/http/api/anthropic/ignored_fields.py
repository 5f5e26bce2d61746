"""Fields of Anthropic's API that Penstock does not support, with their neutral values (`http.api.ignored_fields`)."""

from __future__ import annotations

from penstock.http.api.ignored_fields import IgnoredField

MESSAGES = {
    # There is one service tier, one speed and one location.
    "service_tier": IgnoredField(("auto", "standard_only")),
    "speed": IgnoredField(("standard",)),
    "inference_geo": IgnoredField(),
    # Services that Anthropic runs beside the model.
    "container": IgnoredField(),
    "mcp_servers": IgnoredField(([],)),
    "diagnostics": IgnoredField(),
    # Conversations are not stored: on this error Anthropic's SDK sends them in full (`error_body`).
    "thread": IgnoredField(),
}

# `eager_input_streaming` requests arguments that are not validated as JSON; they are always streamed as generated, and
# are JSON.
TOOL = {
    "eager_input_streaming": IgnoredField((True, False)),
    "allowed_callers": IgnoredField((["direct"],)),
    "input_examples": IgnoredField(([],)),
}

# What Anthropic's responses have in their blocks: clients send them back unchanged.
TEXT_BLOCK = {
    "citations": IgnoredField(([],)),
}
TOOL_USE_BLOCK = {
    "caller": IgnoredField(({"type": "direct"},)),
    "toolset_name": IgnoredField(),
}

THINKING = {
    "display": IgnoredField(("summarized",)),  # the default; thinking is never summarized
}

# Accepted with any value.
HINTS = {
    "metadata": "The client's name for its end user. Taken for compatibility, not used.",
}
