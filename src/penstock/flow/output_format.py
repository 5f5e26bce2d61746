"""How the frontend parses one response: the markers around its reasoning, and the syntax of its tool calls."""

from __future__ import annotations

import msgspec


class ReasoningMarkers(msgspec.Struct, frozen=True):
    """The texts before and behind a model's reasoning."""

    open: str
    close: str


class OutputFormat(msgspec.Struct, frozen=True, kw_only=True):
    """`prompt.chat_format` decides it for each request. `prompt.answer_grammar` constrains the output by it, and
    `stream.output_parser` parses by it."""

    tool_calls: str | None = None  # name of the syntax in `tool_calls.registry`; None: the request offers no tools
    reasoning: ReasoningMarkers | None = None  # None: the output has no reasoning
    in_reasoning: bool = False  # the prompt ends inside the reasoning
    reasoning_budget: int | None = None  # tokens
    calls_only: bool = False  # the output is tool calls and nothing else: what is left of a truncated one is no text
