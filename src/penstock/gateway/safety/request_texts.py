"""The texts of a request that rules look at, everything of the client's that a model may read; and their readings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from penstock.flow import Request
from penstock.gateway.safety.json_text import unescaped
from penstock.gateway.safety.spelling import has_invisible, visible

_FIELDS = ("text", "messages", "documents", "tools", "template_arguments")
_KEYS = frozenset(  # of messages, which no model reads
    ("role", "content", "type", "text", "tool_calls", "tool_call_id", "function", "name", "arguments", "id",
     "reasoning_content", "thinking", "index")
)  # fmt: skip

_MARKUP = {"role": ("system", "user", "assistant", "tool"), "type": ("text", "function")}  # values that say nothing


def request_texts(request: Request) -> list[str]:
    """Prompts of token ids are not among them: they need their model's vocabulary."""
    found = [text for name in _FIELDS if (part := getattr(request, name)) for text in texts_of(part)]
    constraint = request.params.constraint  # which the model may be told, and has to write
    return found if constraint is None or not constraint.source else [*found, constraint.source]


def readings(text: str) -> list[str]:
    """A text as it is; with JSON's escapes read, since arguments of tool calls are JSON in a text; and each of these
    without invisible characters."""
    if text.isascii() and "\\" not in text:
        return [text]
    found = [text]
    if "\\" in text:
        found.append(unescaped(text))
    return list(dict.fromkeys([*found, *(visible(one) for one in found if has_invisible(one))]))


def texts_of(part: Any) -> Iterator[str]:
    """In their order. Without recursion: clients choose how deep it goes."""
    stack = [part]
    while stack:
        one = stack.pop()
        if isinstance(one, str):
            if one:
                yield one
        elif isinstance(one, dict):
            for key in reversed(one):
                if key not in _KEYS:
                    stack.append(key)
                if key not in _MARKUP or one[key] not in _MARKUP[key]:
                    stack.append(one[key])
        elif isinstance(one, list | tuple):
            stack += reversed(one)
        elif isinstance(one, msgspec.Struct):
            stack += [getattr(one, name) for name in reversed(one.__struct_fields__)]
