"""Response bodies as msgspec structs: encoded once per chunk; /openapi.json is generated from them.

UNSET fields are left out. Fields that OpenAI does not have are marked as extensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from penstock.flow import Completion, FinishReason
from penstock.flow.context import ContextTrace
from penstock.http.api.logprobs import TokenLogprob
from penstock.http.api.response_bodies import Body

# Extensions: `timeout`, the request's time limit ended the output, and `dead_end`, no token of the vocabulary could
# continue what `response_format` requires. Failed and cancelled sequences have none: the client gets an error.
Finish = Literal["stop", "length", "tool_calls", "content_filter", "timeout", "dead_end"]
FINISH: dict[FinishReason | None, Finish] = {
    FinishReason.END: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
    FinishReason.CONTENT_FILTER: "content_filter",
    FinishReason.TIMEOUT: "timeout",
    FinishReason.COMPLETE: "stop",
    FinishReason.DEAD_END: "dead_end",
}


class PromptTokensDetails(Body, kw_only=True, frozen=True):
    cached_tokens: int  # found in the prefix cache


class CompletionTokensDetails(Body, kw_only=True, frozen=True):
    reasoning_tokens: int


class Usage(Body, kw_only=True, frozen=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails | UnsetType = UNSET  # of models that reason aloud
    estimated: bool | UnsetType = UNSET  # extension: true if an upstream reported no usage
    cost_usd: float | UnsetType = UNSET  # extension: what the request costs, by the price of the model that answered


class Timings(Body, kw_only=True, frozen=True):
    """Extension: where the time went. Of a request with several choices, from the first that began to the last that
    ended."""

    # With `include_timings`.
    queue_seconds: float | UnsetType = UNSET
    prefill_seconds: float | UnsetType | None = UNSET  # null: no token came out
    decode_seconds: float | UnsetType | None = UNSET
    cached_tokens: int | UnsetType = UNSET
    tokens_per_second: float | UnsetType | None = UNSET  # while decoding; null: too few tokens to tell
    drafted_tokens: int | UnsetType = UNSET  # by speculation, if there were any
    accepted_tokens: int | UnsetType = UNSET  # of those, tokens of the answer

    # With `timings_per_token`, as llama.cpp names them. The prompt's time is from the request's arrival to the first
    # token; a rate is null where there is nothing to divide by.
    cache_n: int | UnsetType = UNSET  # tokens of the prompt that were found in the prefix cache
    prompt_n: int | UnsetType = UNSET  # the others
    prompt_ms: float | UnsetType = UNSET
    prompt_per_token_ms: float | UnsetType | None = UNSET
    prompt_per_second: float | UnsetType | None = UNSET
    predicted_n: int | UnsetType = UNSET
    predicted_ms: float | UnsetType = UNSET
    predicted_per_token_ms: float | UnsetType | None = UNSET
    predicted_per_second: float | UnsetType | None = UNSET
    draft_n: int | UnsetType = UNSET  # at the end of an answer with drafted tokens, as the next
    draft_n_accepted: int | UnsetType = UNSET


class ChatLogprobs(Body, kw_only=True, frozen=True):
    content: list[TokenLogprob]
    refusal: None = None


class CalledFunction(Body, kw_only=True, frozen=True):
    name: str
    arguments: str  # JSON


class ToolCall(Body, kw_only=True, frozen=True):
    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Body, kw_only=True, frozen=True):
    role: Literal["assistant"] = "assistant"
    content: str | None  # null: there are only calls
    refusal: None = None
    reasoning_content: str | UnsetType = UNSET  # extension: what the model thought before it answered
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(Body, kw_only=True, frozen=True):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: Finish
    stop_reason: str | int | UnsetType = UNSET  # extension: the stop string or stop token that ended it
    token_ids: list[int] | UnsetType = UNSET  # extension


class ChatCompletion(Body, kw_only=True, frozen=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    prompt_token_ids: list[int] | UnsetType = UNSET  # extension
    metadata: dict[str, str] | UnsetType | None = UNSET  # of one that is kept: the client's own notes
    prompt_logprobs: list[TokenLogprob | None] | UnsetType = UNSET  # extension: the first token has none
    timings: Timings | UnsetType = UNSET  # extension
    context: ContextTrace | UnsetType = UNSET  # extension: how the prompt was assembled, with `context.trace`


class CalledFunctionDelta(Body, kw_only=True, frozen=True):
    name: str | UnsetType = UNSET
    arguments: str


class ToolCallDelta(Body, kw_only=True, frozen=True):
    """The first of a call has its id and name; the arguments of all of them concatenate."""

    index: int
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET
    function: CalledFunctionDelta


class ChatDelta(Body, kw_only=True, frozen=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    refusal: UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET  # extension
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class DraftedStep(Body, kw_only=True, frozen=True):
    """Extension: a step of speculation. `tokens` are those of the answer, of which the first `accepted` had been
    drafted."""

    drafted: list[str]
    accepted: int
    tokens: list[str]


class ChatChunkChoice(Body, kw_only=True, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    drafts: list[DraftedStep] | UnsetType = UNSET  # with `include_drafts`


class ChatCompletionChunk(Body, kw_only=True, frozen=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    # With stream_options.include_usage: null on all chunks but the last. With continuous_usage_stats: what was used so
    # far.
    usage: Usage | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET  # on the first chunk
    timings: Timings | UnsetType = UNSET  # on the last chunk, or on all of them
    context: ContextTrace | UnsetType = UNSET  # on the last chunk


class TextLogprobs(Body, kw_only=True, frozen=True):
    """Lists of the same length. The first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]  # characters into the text, the echoed prompt included


class TextChoice(Body, kw_only=True, frozen=True):
    text: str
    index: int
    logprobs: TextLogprobs | None = None
    finish_reason: Finish | None = None  # null: there is more to come
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    prompt_logprobs: list[TokenLogprob | None] | UnsetType = UNSET


class TextCompletion(Body, kw_only=True, frozen=True):
    """A whole answer, or one chunk of a stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[TextChoice]
    usage: Usage | UnsetType | None = UNSET
    timings: Timings | UnsetType = UNSET


def usage(completions: Sequence[Completion]) -> Usage:
    """A prompt counts once, however many choices it has."""
    prompt = sum(len(completion.prompt_tokens) for completion in completions)
    output = sum(choice.output_tokens for completion in completions for choice in completion.choices)
    cached = sum(completion.cached_tokens for completion in completions)
    choices = [choice for completion in completions for choice in completion.choices]
    reasoning = CompletionTokensDetails(reasoning_tokens=sum(choice.reasoning_tokens for choice in choices))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=UNSET if all(choice.reasoning is None for choice in choices) else reasoning,
        estimated=any(completion.usage_estimated for completion in completions) or UNSET,
        cost_usd=UNSET if (cost := completions[0].cost_usd) is None else cost,
    )
