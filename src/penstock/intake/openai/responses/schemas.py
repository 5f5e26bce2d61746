"""The body of a request. What is written here is what is checked, and what /openapi.json says."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from penstock.flow.params import MAX_TEMPERATURE
from penstock.flow.tools import MAX_TOOLS
from penstock.intake.fields import MAX_INT, MODEL, STREAM, TEMPERATURE, TOP_P, NotEmpty, Strict, TextOrParts, wrong
from penstock.intake.openai.fields import Metadata
from penstock.intake.openai.formats import JsonObjectFormat, NamedSchema, TextFormat
from penstock.intake.openai.neutral import LABELS, STREAM_OPTIONS
from penstock.intake.openai.responses import neutral
from penstock.intake.openai.tools import Function, WordOr
from penstock.intake.unions import By, Either

# --- items

_ID = Field(None, description="As it came. Not used: items go by their place.")
_STATUS = Field(None, description="As it came. Not used.")
Status = Literal["in_progress", "completed", "incomplete"]


class InputText(Strict):
    only = ("input_text", "parts of text")

    type: Literal["input_text"]
    text: str


class OutputText(Strict):
    type: Literal["output_text"]
    text: str
    annotations: Annotated[Any, neutral.OUTPUT_TEXT["annotations"]] = None
    logprobs: Annotated[Any, neutral.OUTPUT_TEXT["logprobs"]] = None


ItemPart = Annotated[InputText | OutputText, By("type")]


class MessageItem(Strict):
    """The only kind of item that may leave out its type."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: TextOrParts[ItemPart] = Field(description="The text, whole or in parts; parts are joined by line breaks.")
    id: str | None = _ID
    status: Status | None = _STATUS
    phase: Annotated[Any, neutral.MESSAGE["phase"]] = None


class FunctionCallItem(Strict):
    type: Literal["function_call"]
    call_id: str = Field(min_length=1)
    name: str = Field(min_length=1)
    arguments: str = Field(description="A JSON object.")
    id: str | None = _ID
    status: Status | None = _STATUS
    caller: Annotated[Any, neutral.FUNCTION_CALL["caller"]] = None
    namespace: Annotated[Any, neutral.FUNCTION_CALL["namespace"]] = None


class FunctionCallOutputItem(Strict):
    type: Literal["function_call_output"]
    call_id: str = Field(description="That of a `function_call` before it.")
    output: TextOrParts[InputText]
    id: str | None = _ID
    status: Status | None = _STATUS


class SummaryText(Strict):
    type: Literal["summary_text"]
    text: str


class ReasoningText(Strict):
    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(Strict):
    """What the model thought in an earlier turn. Given to the chat template, which may show it or not."""

    type: Literal["reasoning"]
    summary: list[SummaryText] | None = Field(
        None, fail_fast=True, description="Not shown to the model: `content` says it in full."
    )
    content: list[ReasoningText] | None = Field(None, fail_fast=True)
    id: str | None = _ID
    status: Status | None = _STATUS
    encrypted_content: Annotated[Any, neutral.REASONING_ITEM["encrypted_content"]] = None


Item = Annotated[MessageItem | FunctionCallItem | FunctionCallOutputItem | ReasoningItem, By("type", default="message")]
Input = Annotated[str | NotEmpty[Item], Either("a string or a list of items")]

# --- tools


class ResponseTool(Function):
    """What the older API wraps in an object of its own."""

    only = ("function", 'tools of type "function"')

    type: Literal["function"]
    defer_loading: Annotated[Any, neutral.TOOL["defer_loading"]] = None
    allowed_callers: Annotated[Any, neutral.TOOL["allowed_callers"]] = None
    output_schema: Annotated[Any, neutral.TOOL["output_schema"]] = None


class NamedFunction(Strict):
    only = ("function", 'choices of type "function"')

    type: Literal["function"]
    name: str


ToolChoice = WordOr[NamedFunction]

# --- what to write


class JsonSchema(NamedSchema):
    """JSON that is valid by a schema, with its properties in the schema's order."""

    type: Literal["json_schema"]


Format = Annotated[TextFormat | JsonObjectFormat | JsonSchema, By("type")]


class TextOptions(Strict):
    format: Format | None = Field(None, description="Default: any text.")
    verbosity: Annotated[Any, neutral.TEXT["verbosity"]] = None


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]


class ReasoningOptions(Strict):
    effort: Effort | None = Field(None, description="For models whose chat template knows it.")
    summary: Annotated[Any, neutral.REASONING["summary"]] = None
    generate_summary: Annotated[Any, neutral.REASONING["generate_summary"]] = None
    context: Annotated[Any, neutral.REASONING["context"]] = None
    mode: Annotated[Any, neutral.REASONING["mode"]] = None


class EventOptions(Strict):
    include_obfuscation: Annotated[Any, STREAM_OPTIONS["include_obfuscation"]] = None


# --- the body


class ResponseRequest(Strict):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "input": "Hello!", "max_output_tokens": 16}]}
    )

    model: str | None = MODEL
    input: Input = Field(description="A text of the user's, or the items of the conversation.")
    instructions: str | None = Field(None, description="What the model is told before the conversation.")
    previous_response_id: str | None = Field(
        None, description="The response to go on from: its conversation comes before `input`, its instructions do not."
    )
    store: bool | None = Field(
        None, description="Keep the response for `previous_response_id`, in memory and among the newest. Default: true."
    )
    max_output_tokens: int | None = Field(
        None, ge=1, le=MAX_INT, description="Most tokens of the answer. Default: to the end of the context."
    )
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE, description=TEMPERATURE)
    top_p: float | None = TOP_P
    tools: Annotated[list[ResponseTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="Functions that the model may call."
    )
    tool_choice: ToolChoice | None = Field(None, description="Whether it may, must or must not. Default: it may.")
    parallel_tool_calls: bool | None = Field(None, description="Several calls in one answer. Default: true.")
    text: TextOptions | None = Field(None, description="The form of the answer.")
    reasoning: ReasoningOptions | None = Field(None, description="How to think.")
    stream: bool | None = STREAM
    stream_options: EventOptions | None = Field(None, description="Only with `stream`.")
    include: list[neutral.Includable] | None = Field(
        None, fail_fast=True, description="What else to send. Only what has nothing to add here is taken."
    )
    metadata: Metadata | None = Field(None, description="The client's own notes. Sent back, not used.")
    user: str | None = Field(None, description=LABELS["user"])
    safety_identifier: str | None = Field(None, description=LABELS["safety_identifier"])
    prompt_cache_key: str | None = Field(None, description=LABELS["prompt_cache_key"])

    background: Annotated[Any, neutral.RESPONSES["background"]] = None
    conversation: Annotated[Any, neutral.RESPONSES["conversation"]] = None
    prompt: Annotated[Any, neutral.RESPONSES["prompt"]] = None
    truncation: Annotated[Any, neutral.RESPONSES["truncation"]] = None
    context_management: Annotated[Any, neutral.RESPONSES["context_management"]] = None
    service_tier: Annotated[Any, neutral.RESPONSES["service_tier"]] = None
    max_tool_calls: Annotated[Any, neutral.RESPONSES["max_tool_calls"]] = None
    top_logprobs: Annotated[Any, neutral.RESPONSES["top_logprobs"]] = None
    moderation: Annotated[Any, neutral.RESPONSES["moderation"]] = None
    prompt_cache_options: Annotated[Any, neutral.RESPONSES["prompt_cache_options"]] = None
    prompt_cache_retention: Annotated[Any, neutral.RESPONSES["prompt_cache_retention"]] = None

    @model_validator(mode="after")
    def _check_pairs(self) -> ResponseRequest:
        if self.stream_options is not None and not self.stream:
            raise wrong("goes with stream: true only", "stream_options")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise wrong("needs tools to choose from", "tool_choice")
        return self
