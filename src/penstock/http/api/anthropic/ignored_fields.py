"""Fields of Anthropic's API that Penstock does not act on, and the values of them that ask for nothing.

As `http.api.ignored_fields` has it: these values are accepted, as null is everywhere, and any other is refused with an
error that names the field.
"""

from __future__ import annotations

from penstock.http.api.ignored_fields import Inert

MESSAGES = {
    # There is one tier and one speed of service, in one place.
    "service_tier": Inert(("auto", "standard_only")),
    "speed": Inert(("standard",)),
    "inference_geo": Inert(),
    # What Anthropic runs beside the model.
    "container": Inert(),
    "mcp_servers": Inert(([],)),
    "diagnostics": Inert(),
    # Conversations are not kept: the error says so in a way on which Anthropic's SDK sends them whole (`problems`).
    "thread": Inert(),
}

# `eager_input_streaming` asks for arguments without a check that they are JSON; they are streamed as they are made, and
# are JSON, either way.
TOOL = {
    "eager_input_streaming": Inert((True, False)),
    "allowed_callers": Inert((["direct"],)),
    "input_examples": Inert(([],)),
}

# What Anthropic's answers have in their blocks: clients send them back as they came.
TEXT_BLOCK = {
    "citations": Inert(([],)),
}
TOOL_USE_BLOCK = {
    "caller": Inert(({"type": "direct"},)),
    "toolset_name": Inert(),
}

THINKING = {
    "display": Inert(("summarized",)),  # the default; thoughts come whole
}

# Accepted with any value.
HINTS = {
    "metadata": "The client's name for its end user. Taken for compatibility, not used.",
}
