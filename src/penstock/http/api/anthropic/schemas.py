"""Schemas of request bodies. Bodies are checked by them, and /openapi.json is generated from them.

Null equals an absent field wherever a field is optional.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from penstock.flow.params import MAX_STOPS
from penstock.flow.tools import MAX_TOOLS
from penstock.http.api.anthropic import ignored_fields
from penstock.http.api.context_fields import ContextFields
from penstock.http.api.fields import (
    CACHE_CONTROL,
    CLIENT_ONLY,
    MAX_INT,
    MODEL,
    STREAM,
    TEMPERATURE,
    TOP_P,
    Arguments,
    CacheControl,
    NonEmptyList,
    StrictModel,
    field_error,
)
from penstock.http.api.generation_fields import SPECULATION
from penstock.http.parse.unions import ByField, ByJsonType

# --- blocks


class TextBlock(StrictModel):
    only = ("text", 'blocks of type "text"')

    type: Literal["text"]
    text: str
    cache_control: CacheControl | None = CACHE_CONTROL
    citations: Annotated[Any, ignored_fields.TEXT_BLOCK["citations"]] = None
    parsed_output: Any = CLIENT_ONLY


class ThinkingBlock(StrictModel):
    """What the model thought in an earlier turn. Given to the chat template, which may show it or not."""

    type: Literal["thinking"]
    thinking: str
    signature: str = Field(description="Empty in this server's answers. Not checked: thoughts are plain text here.")


class RedactedThinkingBlock(StrictModel):
    """What another server's model thought, encrypted: taken with a warning, and left out of the prompt."""

    type: Literal["redacted_thinking"]
    data: str


class ToolUseBlock(StrictModel):
    type: Literal["tool_use"]
    id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    input: Arguments
    cache_control: CacheControl | None = CACHE_CONTROL
    caller: Annotated[Any, ignored_fields.TOOL_USE_BLOCK["caller"]] = None
    toolset_name: Annotated[Any, ignored_fields.TOOL_USE_BLOCK["toolset_name"]] = None


Text = Annotated[
    str | Annotated[list[TextBlock], Field(fail_fast=True)], ByJsonType("a string or a list of text blocks")
]


class ToolReferenceBlock(StrictModel):
    """A tool that a search has found. The model is shown its name."""

    type: Literal["tool_reference"]
    tool_name: str
    cache_control: CacheControl | None = CACHE_CONTROL

    @property
    def text(self) -> str:
        return self.tool_name


ResultBlock = Annotated[TextBlock | ToolReferenceBlock, ByField("type")]
Result = Annotated[
    str | Annotated[list[ResultBlock], Field(fail_fast=True)], ByJsonType("a string or a list of text blocks")
]


class ToolResultBlock(StrictModel):
    type: Literal["tool_result"]
    tool_use_id: str = Field(description="The `id` of a `tool_use` block before it.")
    content: Result | None = Field(None, description="What the tool gave, as text.")
    is_error: bool | None = Field(None, description="The tool failed: the model is shown `Error: ` in front of it.")
    cache_control: CacheControl | None = CACHE_CONTROL
    toolset_name: Annotated[Any, ignored_fields.TOOL_USE_BLOCK["toolset_name"]] = None


# --- messages

UserBlock = Annotated[TextBlock | ToolResultBlock, ByField("type")]
AssistantBlock = Annotated[TextBlock | ThinkingBlock | RedactedThinkingBlock | ToolUseBlock, ByField("type")]
_BLOCKS = ByJsonType("a string or a list of blocks")


class UserTurn(StrictModel):
    role: Literal["user"]
    content: Annotated[str | NonEmptyList[UserBlock], _BLOCKS]


class AssistantTurn(StrictModel):
    """The last message may be the assistant's: the answer then goes on from its text."""

    role: Literal["assistant"]
    content: Annotated[str | Annotated[list[AssistantBlock], Field(fail_fast=True)], _BLOCKS]


class SystemTurn(StrictModel):
    role: Literal["system"]
    content: Text


Turn = Annotated[UserTurn | AssistantTurn | SystemTurn, ByField("role")]

# --- tools


class ClientTool(StrictModel):
    only = ("custom", "tools of your own")

    name: str
    description: str | None = None
    input_schema: dict[str, Any] = Field(description="JSON Schema of the tool's input, which is an object.")
    strict: bool | None = Field(
        None,
        description="Refuse a schema that cannot be enforced whole. Default: calls keep to what can be, and the "
        "header `x-penstock-warnings` names the rest.",
    )
    type: Literal["custom"] | None = None
    cache_control: CacheControl | None = CACHE_CONTROL
    defer_loading: bool | None = Field(None, description="Tools are never searched for: all are shown to the model.")
    eager_input_streaming: Annotated[Any, ignored_fields.TOOL["eager_input_streaming"]] = None
    allowed_callers: Annotated[Any, ignored_fields.TOOL["allowed_callers"]] = None
    input_examples: Annotated[Any, ignored_fields.TOOL["input_examples"]] = None


class ChooseFreely(StrictModel):
    type: Literal["auto"]
    disable_parallel_tool_use: bool | None = None


class ChooseAny(StrictModel):
    type: Literal["any"]
    disable_parallel_tool_use: bool | None = None


class ChooseTool(StrictModel):
    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool | None = None


class ChooseNone(StrictModel):
    type: Literal["none"]


Choose = Annotated[ChooseFreely | ChooseAny | ChooseTool | ChooseNone, ByField("type")]

# --- thinking and output format


class ThinkWithin(StrictModel):
    type: Literal["enabled"]
    budget_tokens: int = Field(ge=1024, le=MAX_INT)
    display: Annotated[Any, ignored_fields.THINKING["display"]] = None


class ThinkFreely(StrictModel):
    type: Literal["adaptive"]
    display: Annotated[Any, ignored_fields.THINKING["display"]] = None


class ThinkNot(StrictModel):
    type: Literal["disabled"]


Thinking = Annotated[ThinkWithin | ThinkFreely | ThinkNot, ByField("type")]


class JsonFormat(StrictModel):
    type: Literal["json_schema"]
    json_schema: dict[str, Any] = Field(alias="schema", description="JSON Schema of the answer.")


class OutputConfig(StrictModel):
    format: JsonFormat | None = Field(None, description="The answer is JSON of this schema.")
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = Field(
        None, description="How much to think. For models whose chat template knows it."
    )


# --- context management


class ClearThinking(StrictModel):
    type: Literal["clear_thinking_20251015"]
    keep: Literal["all"] | dict[str, Any] | None = Field(None, description="Other than all: a warning, and all stay.")


class ClearToolUses(StrictModel):
    """Taken with a warning: the conversation stays as it is."""

    type: Literal["clear_tool_uses_20250919"]
    trigger: dict[str, Any] | None = None
    keep: dict[str, Any] | None = None
    clear_at_least: dict[str, Any] | None = None
    exclude_tools: list[str] | None = None
    clear_tool_inputs: bool | list[str] | None = None


class ContextManagement(StrictModel):
    edits: list[Annotated[ClearThinking | ClearToolUses, ByField("type")]] | None = Field(None, fail_fast=True)


# --- the bodies


class CountTokensRequest(StrictModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}]}
    )

    model: str | None = MODEL
    messages: NonEmptyList[Turn] = Field(description="The conversation so far.")
    system: Text | None = Field(None, description="What the model is told before the conversation.")
    tools: Annotated[list[ClientTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="Tools that the model may call."
    )
    tool_choice: Choose | None = Field(None, description="Whether it may, must or must not. Default: it may.")
    thinking: Thinking | None = Field(
        None,
        description="Whether to think. For models whose chat template has a switch for it, or takes a budget.",
    )
    output_config: OutputConfig | None = Field(None, description="The form of the answer, and the effort for it.")
    cache_control: CacheControl | None = CACHE_CONTROL
    context_management: ContextManagement | None = Field(
        None, description="What to leave out of the conversation. Taken for compatibility: all of it stays."
    )

    @model_validator(mode="after")
    def _check_pairs(self) -> CountTokensRequest:
        if self.tool_choice is not None and not self.tools:
            raise field_error("needs tools to choose from", "tool_choice")
        effort = self.output_config.effort if self.output_config is not None else None
        if effort is not None and isinstance(self.thinking, ThinkNot):
            raise field_error("is disabled, which leaves no place for output_config.effort", "thinking")
        return self


class EndUser(StrictModel):
    user_id: str | None = Field(None, max_length=256)


class MessagesRequest(CountTokensRequest, ContextFields):
    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"model": "smollm2", "max_tokens": 16, "messages": [{"role": "user", "content": "Hello!"}]},
            ]
        }
    )

    max_tokens: int = Field(ge=1, le=MAX_INT, description="Maximum number of tokens to generate, thinking included.")
    stream: bool | None = STREAM
    stop_sequences: list[Annotated[str, Field(min_length=1)]] | None = Field(
        None, max_length=MAX_STOPS, fail_fast=True, description="Texts that end the answer, and are not part of it."
    )
    temperature: float | None = Field(None, ge=0, le=1, description=TEMPERATURE)
    top_p: float | None = TOP_P
    top_k: int | None = Field(None, ge=0, le=MAX_INT, description="Draw from this many likeliest tokens. 0: all.")
    speculation: bool | None = SPECULATION
    metadata: EndUser | None = Field(None, description=ignored_fields.HINTS["metadata"])

    service_tier: Annotated[Any, ignored_fields.MESSAGES["service_tier"]] = None
    speed: Annotated[Any, ignored_fields.MESSAGES["speed"]] = None
    inference_geo: Annotated[Any, ignored_fields.MESSAGES["inference_geo"]] = None
    container: Annotated[Any, ignored_fields.MESSAGES["container"]] = None
    mcp_servers: Annotated[Any, ignored_fields.MESSAGES["mcp_servers"]] = None
    diagnostics: Annotated[Any, ignored_fields.MESSAGES["diagnostics"]] = None
    thread: Annotated[Any, ignored_fields.MESSAGES["thread"]] = None
