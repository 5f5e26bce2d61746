"""Response bodies and stream events as msgspec structs; /openapi.json is generated from them."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.flow import Choice, Completion, FinishReason
from penstock.flow.context import ContextTrace
from penstock.http.api.fields import read_arguments
from penstock.http.api.response_bodies import Body, TaggedBody

# An extension: `dead_end`, no token could continue what `output_config.format` requires.
StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "refusal", "dead_end"]
_STOP: dict[FinishReason, StopReason] = {
    FinishReason.END: "end_turn",
    FinishReason.STOP_TOKEN: "end_turn",
    FinishReason.COMPLETE: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.LENGTH: "max_tokens",
    FinishReason.CONTEXT: "max_tokens",
    FinishReason.CONTENT_FILTER: "refusal",
    FinishReason.DEAD_END: "dead_end",
}


# --- the blocks of a message


class TextContent(TaggedBody, kw_only=True, frozen=True, tag="text"):
    text: str
    citations: None = None


class ThinkingContent(TaggedBody, kw_only=True, frozen=True, tag="thinking"):
    thinking: str
    signature: Literal[""] = ""  # thinking is plain text: there is nothing to verify when it comes back


class ToolUseContent(TaggedBody, kw_only=True, frozen=True, tag="tool_use"):
    id: str
    name: str
    input: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]  # as the model wrote it


Content = TextContent | ThinkingContent | ToolUseContent


class MessageUsage(Body, kw_only=True, frozen=True):
    """The tokens of the prompt are those computed and those read from the cache."""

    input_tokens: int  # without those read from the cache
    cache_creation_input_tokens: int = 0  # nothing is charged for it
    cache_read_input_tokens: int
    output_tokens: int
    cost_usd: float | UnsetType = UNSET  # extension: at the end of an answer of a model with a price


class MessageAnswer(TaggedBody, kw_only=True, frozen=True, tag="message"):
    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[Content]
    stop_reason: StopReason | None  # null as the stream begins
    stop_sequence: str | None
    usage: MessageUsage
    context: ContextTrace | UnsetType = UNSET  # extension: how the prompt was assembled, with `context.trace`


class TokenCount(Body, kw_only=True, frozen=True):
    input_tokens: int
    estimated: bool | UnsetType = UNSET  # of an upstream or a route (extension)


# --- events


class MessageStart(TaggedBody, kw_only=True, frozen=True, tag="message_start"):
    message: MessageAnswer


class Ping(TaggedBody, kw_only=True, frozen=True, tag="ping"):
    pass


class ContentBlockStart(TaggedBody, kw_only=True, frozen=True, tag="content_block_start"):
    index: int
    content_block: Content


class TextDelta(TaggedBody, kw_only=True, frozen=True, tag="text_delta"):
    text: str


class ThinkingDelta(TaggedBody, kw_only=True, frozen=True, tag="thinking_delta"):
    thinking: str


class InputJsonDelta(TaggedBody, kw_only=True, frozen=True, tag="input_json_delta"):
    partial_json: str


class ContentBlockDelta(TaggedBody, kw_only=True, frozen=True, tag="content_block_delta"):
    index: int
    delta: TextDelta | ThinkingDelta | InputJsonDelta


class ContentBlockStop(TaggedBody, kw_only=True, frozen=True, tag="content_block_stop"):
    index: int


class Stopped(Body, kw_only=True, frozen=True):
    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(TaggedBody, kw_only=True, frozen=True, tag="message_delta"):
    delta: Stopped
    usage: MessageUsage
    context: ContextTrace | UnsetType = UNSET  # extension


class MessageStop(TaggedBody, kw_only=True, frozen=True, tag="message_stop"):
    pass


EVENTS = (MessageStart, Ping, ContentBlockStart, ContentBlockDelta, ContentBlockStop, MessageDelta, MessageStop)


def usage(prompt_tokens: int, cached_tokens: int, output_tokens: int, cost_usd: float | None = None) -> MessageUsage:
    return MessageUsage(
        input_tokens=prompt_tokens - cached_tokens,
        cache_read_input_tokens=cached_tokens,
        output_tokens=output_tokens,
        cost_usd=UNSET if cost_usd is None else cost_usd,
    )


def whole_usage(completion: Completion) -> MessageUsage:
    tokens = (len(completion.prompt_tokens), completion.cached_tokens, completion.choices[0].output_tokens)
    return usage(*tokens, completion.cost_usd)


def stop_details(choice: Choice) -> Stopped:
    reason = _STOP[choice.finish]
    if choice.calls and reason == "end_turn":
        reason = "tool_use"
    sequence = choice.stop if reason == "stop_sequence" and isinstance(choice.stop, str) else None
    return Stopped(stop_reason=reason, stop_sequence=sequence)


def content(choice: Choice) -> list[Content]:
    """Empty output has no blocks."""
    blocks: list[Content] = [ThinkingContent(thinking=choice.reasoning)] if choice.reasoning else []
    if choice.text:
        blocks.append(TextContent(text=choice.text))
    calls = [ToolUseContent(id=call.id, name=call.name, input=_input(call.arguments)) for call in choice.calls]
    return [*blocks, *calls]


def _input(arguments: str) -> msgspec.Raw:
    """An empty object for arguments that max_tokens cut short: part of an object is not JSON."""
    return msgspec.Raw(b"{}" if read_arguments(arguments) is None else arguments.encode())
