"""Schemas of request bodies. Bodies are checked by them, and /openapi.json is generated from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field, model_validator

from penstock.flow.params import MAX_LOGPROBS, MAX_TEMPERATURE
from penstock.flow.tools import MAX_TOOLS
from penstock.http.api.context_fields import ContextFields
from penstock.http.api.fields import MAX_INT, MODEL, STREAM, TEMPERATURE, TOP_P, StrictModel, field_error
from penstock.http.api.function_tools import (
    Function,
    ToolChoiceOr,
)
from penstock.http.api.generation_fields import IGNORE_EOS, SEED, SPECULATION, STOP, Metadata, Stop, TemplateKwargs
from penstock.http.api.ignored_fields import (
    LABELS,
    STREAM_OPTIONS,
)
from penstock.http.api.response_format import JsonObjectFormat, NamedSchema, TextFormat
from penstock.http.api.responses import ignored_fields
from penstock.http.api.responses.item_schemas import Input
from penstock.http.parse.unions import ByField
from penstock.settings.context import ContextSettings, HistoryPolicy

# --- tools


class ResponseTool(Function):
    """What the older API wraps in an object of its own."""

    type: Literal["function"]
    defer_loading: bool | None = Field(None, description="Tools are never searched for: all are shown to the model.")
    allowed_callers: Annotated[Any, ignored_fields.TOOL["allowed_callers"]] = None
    output_schema: Annotated[Any, ignored_fields.TOOL["output_schema"]] = None


class DroppedTool(BaseModel):
    """What coding agents offer beside functions. Taken with a warning: the model is not told of it."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: Literal[
        "custom",
        "namespace",
        "web_search",
        "web_search_2025_08_26",
        "web_search_preview",
        "web_search_preview_2025_03_11",
        "image_generation",
        "local_shell",
        "tool_search",
    ]


AnyTool = Annotated[ResponseTool | DroppedTool, ByField("type")]


class NamedFunction(StrictModel):
    only = ("function", 'choices of type "function"')

    type: Literal["function"]
    name: str


ToolChoice = ToolChoiceOr[NamedFunction]

# --- output format and reasoning


class JsonSchema(NamedSchema):
    """JSON that is valid by a schema, with its properties in the schema's order."""

    type: Literal["json_schema"]


Format = Annotated[TextFormat | JsonObjectFormat | JsonSchema, ByField("type")]


class TextOptions(StrictModel):
    format: Format | None = Field(None, description="Default: any text.")
    verbosity: Literal["low", "medium", "high"] | None = Field(None, description=ignored_fields.HINTS["verbosity"])


Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Summary = Literal["auto", "concise", "detailed"]


class ReasoningOptions(StrictModel):
    effort: Effort | None = Field(None, description="For models whose chat template knows it.")
    summary: Summary | None = Field(None, description=ignored_fields.HINTS["summary"])
    generate_summary: Summary | None = Field(None, description=ignored_fields.HINTS["summary"])
    context: Annotated[Any, ignored_fields.REASONING["context"]] = None
    mode: Annotated[Any, ignored_fields.REASONING["mode"]] = None


class EventOptions(StrictModel):
    include_obfuscation: Annotated[Any, STREAM_OPTIONS["include_obfuscation"]] = None
    reasoning_summary_delivery: str | None = Field(
        None, description="When to send summaries. Not used: there are none."
    )


# --- the bodies


class InputTokensRequest(StrictModel):
    """What decides the prompt."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"model": "smollm2", "input": "Hello!"}]})

    model: str | None = MODEL
    input: Input | None = Field(None, description="A text of the user's, or the items of the conversation.")
    instructions: str | None = Field(None, description="What the model is told before the conversation.")
    previous_response_id: str | None = Field(
        None, description="The response to go on from: its conversation comes before `input`, its instructions do not."
    )
    tools: Annotated[list[AnyTool], Field(max_length=MAX_TOOLS, fail_fast=True)] | None = Field(
        None, description="Functions that the model may call."
    )
    tool_choice: ToolChoice | None = Field(None, description="Whether it may, must or must not. Default: it may.")
    parallel_tool_calls: bool | None = Field(None, description="Several calls in one answer. Default: true.")
    text: TextOptions | None = Field(None, description="The form of the answer.")
    reasoning: ReasoningOptions | None = Field(None, description="How to think.")
    chat_template_kwargs: TemplateKwargs | None = Field(
        None, description="Extension. More variables for the model's chat template."
    )
    conversation: Annotated[Any, ignored_fields.RESPONSES["conversation"]] = None
    truncation: Annotated[Any, ignored_fields.COUNT["truncation"]] = None

    @property
    def functions(self) -> list[ResponseTool]:
        """The tools that the model sees."""
        return [tool for tool in self.tools or () if isinstance(tool, ResponseTool)]

    @model_validator(mode="after")
    def _check_prompt(self) -> InputTokensRequest:
        if self.input is None and self.previous_response_id is None:
            raise field_error("is required where there is no previous_response_id", "input")
        if self.tool_choice not in (None, "none", "auto") and not self.functions:
            raise field_error("needs functions among the tools to choose from", "tool_choice")
        return self


class ResponseRequest(InputTokensRequest, ContextFields):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "input": "Hello!", "max_output_tokens": 16}]}
    )

    input: Input = Field(description="A text of the user's, or the items of the conversation.")
    truncation: Literal["auto", "disabled"] | None = Field(
        None,
        description="`auto`: drop the oldest turns of a conversation that does not fit, as `context` does. Default: "
        "`disabled`, an error.",
    )
    store: bool | None = Field(
        None, description="Keep the response for `previous_response_id`, in memory and among the newest. Default: true."
    )
    max_output_tokens: int | None = Field(
        None, ge=1, le=MAX_INT, description="Maximum number of tokens to generate. Default: to the end of the context."
    )
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE, description=TEMPERATURE)
    top_p: float | None = TOP_P
    top_k: int | None = Field(
        None, ge=-1, le=MAX_INT, description="Extension. Draw from this many tokens. 0 and -1: all."
    )
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Taken from tokens that have been used.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Taken from tokens for each use so far.")
    seed: int | None = SEED
    stop: Stop | None = STOP
    ignore_eos: bool | None = IGNORE_EOS
    speculation: bool | None = SPECULATION
    stream: bool | None = STREAM
    stream_options: EventOptions | None = Field(None, description="Only with `stream`.")
    include: list[ignored_fields.Includable] | None = Field(
        None,
        fail_fast=True,
        description="What else to send: `message.output_text.logprobs`, `reasoning.encrypted_content` (thoughts, for "
        "clients that send back only these; without `store` always). The others have nothing to add here.",
    )
    top_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Log-probabilities of this many likeliest tokens at each place. Needs `include`.",
    )
    metadata: Metadata | None = Field(None, description="The client's own notes. Sent back, not used.")
    client_metadata: dict[str, Any] | None = Field(None, description="A coding agent's own notes. Not used: a warning.")
    user: str | None = Field(None, description=LABELS["user"])
    safety_identifier: str | None = Field(None, description=LABELS["safety_identifier"])
    prompt_cache_key: str | None = Field(None, description=LABELS["prompt_cache_key"])

    background: Annotated[Any, ignored_fields.RESPONSES["background"]] = None
    prompt: Annotated[Any, ignored_fields.RESPONSES["prompt"]] = None
    context_management: Annotated[Any, ignored_fields.RESPONSES["context_management"]] = None
    service_tier: Annotated[Any, ignored_fields.RESPONSES["service_tier"]] = None
    max_tool_calls: Annotated[Any, ignored_fields.RESPONSES["max_tool_calls"]] = None
    moderation: Annotated[Any, ignored_fields.RESPONSES["moderation"]] = None
    prompt_cache_options: Annotated[Any, ignored_fields.RESPONSES["prompt_cache_options"]] = None
    prompt_cache_retention: Annotated[Any, ignored_fields.RESPONSES["prompt_cache_retention"]] = None

    def assembly(self) -> dict[str, Any]:
        """`truncation` is a policy for the history, beside those of `context`."""
        fields = super().assembly()
        if self.truncation is None or (self.context is not None and self.context.history is not None):
            return fields
        policy: HistoryPolicy = "drop_oldest" if self.truncation == "auto" else "keep_all"
        asked = fields["context"]
        if asked is not None or self.truncation == "auto":
            fields["context"] = replace(asked or ContextSettings(), history=policy)
        return fields

    @property
    def with_logprobs(self) -> bool:
        return ignored_fields.LOGPROBS in (self.include or ())

    @property
    def with_encrypted_reasoning(self) -> bool:
        """Whether reasoning items have `encrypted_content`, for clients that do not use stored conversations."""
        return self.store is False or ignored_fields.ENCRYPTED_REASONING in (self.include or ())

    @model_validator(mode="after")
    def _check_pairs(self) -> ResponseRequest:
        if self.stream_options is not None and not self.stream:
            raise field_error("goes with stream: true only", "stream_options")
        if self.top_logprobs and not self.with_logprobs:
            raise field_error(f'needs include: ["{ignored_fields.LOGPROBS}"]', "top_logprobs")
        return self
