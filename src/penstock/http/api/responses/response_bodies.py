"""The response, its items and the events of its stream, as msgspec structs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.flow import Choice, Completion, FinishReason
from penstock.flow.context import ContextTrace
from penstock.http.api.logprobs import TokenLogprob
from penstock.http.api.response_bodies import Body, TaggedBody

Status = Literal["in_progress", "completed", "incomplete"]
ResponseStatus = Literal[Status, "failed"]
# Any other finish reason cuts the output short.
_COMPLETE = (FinishReason.END, FinishReason.STOP_TOKEN, FinishReason.STOP_STRING, FinishReason.COMPLETE)


# --- items


class OutputTextPart(TaggedBody, kw_only=True, frozen=True, tag="output_text"):
    text: str
    annotations: tuple[()] = ()
    logprobs: tuple[TokenLogprob, ...] = ()  # if `include` asks for them


class ReasoningTextPart(TaggedBody, kw_only=True, frozen=True, tag="reasoning_text"):
    text: str


class OutputMessage(TaggedBody, kw_only=True, frozen=True, tag="message"):
    id: str
    status: Status
    role: Literal["assistant"] = "assistant"
    content: list[OutputTextPart]


class OutputFunctionCall(TaggedBody, kw_only=True, frozen=True, tag="function_call"):
    id: str
    call_id: str
    name: str
    arguments: str
    status: Status


class OutputReasoning(TaggedBody, kw_only=True, frozen=True, tag="reasoning"):
    id: str
    summary: tuple[()] = ()
    content: list[ReasoningTextPart]
    encrypted_content: str | UnsetType = UNSET  # the same text, for clients that send back only this
    status: Status


Part = OutputTextPart | ReasoningTextPart
Item = OutputMessage | OutputFunctionCall | OutputReasoning

# --- the response


class InputTokensDetails(Body, kw_only=True, frozen=True):
    cached_tokens: int  # found in the prefix cache
    cache_write_tokens: int = 0  # nothing is charged for it


class OutputTokensDetails(Body, kw_only=True, frozen=True):
    reasoning_tokens: int


class ResponseUsage(Body, kw_only=True, frozen=True):
    input_tokens: int
    input_tokens_details: InputTokensDetails
    output_tokens: int
    output_tokens_details: OutputTokensDetails
    total_tokens: int
    cost_usd: float | UnsetType = UNSET  # extension: of a model with a price


class ResponseFailure(Body, kw_only=True, frozen=True):
    code: Literal["server_error", "rate_limit_exceeded"]
    message: str


class IncompleteDetails(Body, kw_only=True, frozen=True):
    # dead_end: an extension, no token could continue the constraint
    reason: Literal["max_output_tokens", "content_filter", "dead_end"]


class OfferedFunction(TaggedBody, kw_only=True, frozen=True, tag="function"):
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool | None


class ReasoningState(Body, kw_only=True, frozen=True):
    effort: str | None
    summary: None = None


class TextState(Body, kw_only=True, frozen=True):
    format: dict[str, Any]


class Response(Body, kw_only=True, frozen=True):
    """What was asked for comes back with it. Has all that OpenResponses requires."""

    id: str
    object: Literal["response"] = "response"
    created_at: int  # seconds since 1970
    completed_at: int | None = None  # null: it was not completed
    status: ResponseStatus
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    instructions: str | None
    max_output_tokens: int | None
    model: str
    output: list[Item]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: ReasoningState
    store: bool
    temperature: float
    text: TextState
    tool_choice: str | dict[str, Any]
    tools: list[OfferedFunction]  # that the model was told of
    top_p: float
    presence_penalty: float
    frequency_penalty: float
    top_logprobs: int
    truncation: Literal["auto", "disabled"] = "disabled"
    usage: ResponseUsage | None
    user: str | None
    safety_identifier: str | None
    prompt_cache_key: str | None
    metadata: dict[str, str]
    background: Literal[False] = False
    service_tier: Literal["default"] = "default"
    max_tool_calls: None = None
    context: ContextTrace | UnsetType = UNSET  # extension: how the prompt was assembled, with `context.trace`


class DeletedResponse(Body, kw_only=True, frozen=True):
    id: str
    object: Literal["response"] = "response"
    deleted: Literal[True] = True


class InputTokens(Body, kw_only=True, frozen=True):
    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: int
    estimated: bool | UnsetType = UNSET  # of an upstream or a route (extension)


class InputItems(Body, kw_only=True, frozen=True):
    """A page of the conversation that a response answered."""

    object: Literal["list"] = "list"
    data: list[Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]]
    first_id: str | None  # null: the page is empty
    last_id: str | None
    has_more: bool


# --- events


class Numbered(TaggedBody, kw_only=True, frozen=True):
    sequence_number: int  # from 0


class ResponseCreated(Numbered, kw_only=True, frozen=True, tag="response.created"):
    response: Response


class ResponseInProgress(Numbered, kw_only=True, frozen=True, tag="response.in_progress"):
    response: Response


class ResponseCompleted(Numbered, kw_only=True, frozen=True, tag="response.completed"):
    response: Response


class ResponseIncomplete(Numbered, kw_only=True, frozen=True, tag="response.incomplete"):
    response: Response


class ResponseFailed(Numbered, kw_only=True, frozen=True, tag="response.failed"):
    response: Response


class OutputItemAdded(Numbered, kw_only=True, frozen=True, tag="response.output_item.added"):
    output_index: int
    item: Item


class OutputItemDone(Numbered, kw_only=True, frozen=True, tag="response.output_item.done"):
    output_index: int
    item: Item


class Placed(Numbered, kw_only=True, frozen=True):
    """An event about one item."""

    item_id: str
    output_index: int


class Within(Placed, kw_only=True, frozen=True):
    """An event about the only part of an item."""

    content_index: Literal[0] = 0


class ContentPartAdded(Within, kw_only=True, frozen=True, tag="response.content_part.added"):
    part: Part


class ContentPartDone(Within, kw_only=True, frozen=True, tag="response.content_part.done"):
    part: Part


class OutputTextDelta(Within, kw_only=True, frozen=True, tag="response.output_text.delta"):
    delta: str
    logprobs: tuple[TokenLogprob, ...] = ()


class OutputTextDone(Within, kw_only=True, frozen=True, tag="response.output_text.done"):
    text: str
    logprobs: tuple[TokenLogprob, ...] = ()


class ReasoningTextDelta(Within, kw_only=True, frozen=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningTextDone(Within, kw_only=True, frozen=True, tag="response.reasoning_text.done"):
    text: str


class ArgumentsDelta(Placed, kw_only=True, frozen=True, tag="response.function_call_arguments.delta"):
    delta: str


class ArgumentsDone(Placed, kw_only=True, frozen=True, tag="response.function_call_arguments.done"):
    arguments: str
    name: str


EVENTS = (
    ResponseCreated,
    ResponseInProgress,
    OutputItemAdded,
    ContentPartAdded,
    OutputTextDelta,
    OutputTextDone,
    ReasoningTextDelta,
    ReasoningTextDone,
    ContentPartDone,
    ArgumentsDelta,
    ArgumentsDone,
    OutputItemDone,
    ResponseCompleted,
    ResponseIncomplete,
    ResponseFailed,
)


def status(choice: Choice) -> Literal["completed", "incomplete"]:
    return "completed" if choice.finish in _COMPLETE else "incomplete"


def incomplete_details(choice: Choice) -> IncompleteDetails | None:
    if choice.finish in _COMPLETE:
        return None
    match choice.finish:
        case FinishReason.CONTENT_FILTER:
            return IncompleteDetails(reason="content_filter")
        case FinishReason.DEAD_END:
            return IncompleteDetails(reason="dead_end")
    return IncompleteDetails(reason="max_output_tokens")


def usage(completion: Completion) -> ResponseUsage:
    (choice,) = completion.choices
    prompt, output = len(completion.prompt_tokens), choice.output_tokens
    return ResponseUsage(
        input_tokens=prompt,
        input_tokens_details=InputTokensDetails(cached_tokens=completion.cached_tokens),
        output_tokens=output,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=choice.reasoning_tokens),
        total_tokens=prompt + output,
        cost_usd=UNSET if completion.cost_usd is None else completion.cost_usd,
    )
