"""The bodies of answers, as msgspec structs: encoded once per chunk, and the source of their part of /openapi.json.

Fields that are UNSET are left out. Those OpenAI does not have are marked as extensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from msgspec import UNSET, UnsetType

from penstock.flow import Completion, FinishReason
from penstock.intake.answers import Body

# `timeout` and `dead_end` are ours: the request's own time limit ended the answer, or no token of the vocabulary could
# have gone on with what `response_format` asks for. Sequences that failed or were cancelled have none:
# the client gets an error instead.
Finish = Literal["stop", "length", "tool_calls", "timeout", "dead_end"]
FINISH: dict[FinishReason | None, Finish] = {
    FinishReason.END: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.CONTEXT: "length",
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


class Timings(Body, kw_only=True, frozen=True):
    """Extension: where the time went. Of a request with several choices, from the first that began to the last that
    ended."""

    queue_seconds: float
    prefill_seconds: float | None  # null: no token came out
    decode_seconds: float | None
    cached_tokens: int
    tokens_per_second: float | None  # while decoding; null: too few tokens to tell


class TopLogprob(Body, kw_only=True, frozen=True):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Body, kw_only=True, frozen=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


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
    prompt_logprobs: list[TokenLogprob | None] | UnsetType = UNSET  # extension: the first token has none
    timings: Timings | UnsetType = UNSET  # extension


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


class ChatChunkChoice(Body, kw_only=True, frozen=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: Finish | None = None
    stop_reason: str | int | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


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
    timings: Timings | UnsetType = UNSET  # on the last chunk


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
    output = sum(len(choice.tokens) for completion in completions for choice in completion.choices)
    cached = sum(completion.cached_tokens for completion in completions)
    choices = [choice for completion in completions for choice in completion.choices]
    reasoning = CompletionTokensDetails(reasoning_tokens=sum(choice.reasoning_tokens for choice in choices))
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=output,
        total_tokens=prompt + output,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
        completion_tokens_details=UNSET if all(choice.reasoning is None for choice in choices) else reasoning,
    )


def timings(completions: Sequence[Completion]) -> Timings:
    choices = [choice for completion in completions for choice in completion.choices]
    times = [choice.timings for choice in choices if choice.timings is not None]
    arrival = min(time.arrival for time in times)
    finished = max(time.finished for time in times)
    admitted = min([time.admitted for time in times if time.admitted is not None], default=finished)
    first = min([time.first_token for time in times if time.first_token is not None], default=None)
    decode = None if first is None else finished - first
    followers = sum(max(len(choice.tokens) - 1, 0) for choice in choices)  # decoding begins behind a first token
    return Timings(
        queue_seconds=round(admitted - arrival, 6),
        prefill_seconds=None if first is None else round(first - admitted, 6),
        decode_seconds=None if decode is None else round(decode, 6),
        cached_tokens=sum(completion.cached_tokens for completion in completions),
        tokens_per_second=round(followers / decode, 3) if decode and followers else None,
    )
