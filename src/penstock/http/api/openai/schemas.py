"""Schemas of request bodies. Bodies are checked by them, and /openapi.json is generated from them.

Null equals an absent field wherever a field is optional. Fields that OpenAI does not have are marked "Extension".
Bounds are OpenAI's where it has any.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, model_validator

from penstock.flow.params import MAX_CHOICES, MAX_LOGPROBS, MAX_TEMPERATURE
from penstock.http.api.chat_messages import ChatTemplateFields, Messages
from penstock.http.api.context_fields import ContextFields
from penstock.http.api.fields import MAX_INT, MODEL, STREAM, TEMPERATURE, TOP_P, StrictModel, field_error
from penstock.http.api.generation_fields import (
    IGNORE_EOS,
    SEED,
    SPECULATION,
    STOP,
    LogitBias,
    Metadata,
    Stop,
    TokenId,
)
from penstock.http.api.ignored_fields import LABELS, STREAM_OPTIONS
from penstock.http.api.openai import ignored_fields
from penstock.http.api.openai.prompts import (
    TRUNCATE,
    Prompts,
    Truncation,
)
from penstock.http.api.openai.structured_outputs import StructuredOutputFields
from penstock.http.api.openai.tools import ToolChoice, Tools


class StreamOptions(StrictModel):
    include_usage: bool | None = Field(
        None, description="End the stream with one more chunk that has the `usage` of the request and no choices."
    )
    continuous_usage_stats: bool | None = Field(
        None, description="Extension. Put the `usage` so far, of all choices together, into every chunk."
    )
    include_obfuscation: Annotated[Any, STREAM_OPTIONS["include_obfuscation"]] = None


class GenerationFields(StructuredOutputFields):
    """What chat and plain completions have in common."""

    model: str | None = MODEL
    stream: bool | None = STREAM
    stream_options: StreamOptions | None = Field(None, description="Only with `stream`.")
    n: int | None = Field(None, ge=1, le=MAX_CHOICES, description="How many answers to make. Default: 1.")
    seed: int | None = SEED
    temperature: float | None = Field(None, ge=0, le=MAX_TEMPERATURE, description=TEMPERATURE)
    top_p: float | None = TOP_P
    presence_penalty: float | None = Field(None, ge=-2, le=2, description="Taken from tokens that have been used.")
    frequency_penalty: float | None = Field(None, ge=-2, le=2, description="Taken from tokens for each use so far.")
    logit_bias: LogitBias | None = Field(None, description="Token id → what is added to its logit.")
    stop: Stop | None = STOP
    user: str | None = Field(None, description=LABELS["user"])

    max_tokens: int | None = Field(None, ge=1, le=MAX_INT, description="Maximum number of tokens to generate.")
    max_completion_tokens: int | None = Field(None, ge=1, le=MAX_INT, description="The newer name of `max_tokens`.")
    best_of: int | None = Field(None, ge=1, le=MAX_CHOICES, description="Only the value of `n` is supported.")

    top_k: int | None = Field(
        None, ge=-1, le=MAX_INT, description="Extension. Draw from this many tokens. 0 or -1: all."
    )
    min_p: float | None = Field(
        None, ge=0, le=1, description="Extension. Leave out tokens less likely than this share of the likeliest."
    )
    typical_p: float | None = Field(
        None, gt=0, le=1, description="Extension. Draw from the most typical tokens that have this probability."
    )
    repetition_penalty: float | None = Field(
        None, ge=0.01, le=100, description="Extension. Above 1: tokens of the prompt and the answer become less likely."
    )
    min_tokens: int | None = Field(None, ge=0, le=MAX_INT, description="Extension. No end before this many tokens.")
    stop_token_ids: list[TokenId] | None = Field(
        None, max_length=128, fail_fast=True, description="Extension. Tokens that end the answer."
    )
    ignore_eos: bool | None = IGNORE_EOS
    speculation: bool | None = SPECULATION
    include_stop_str_in_output: bool | None = Field(
        None,
        description="Extension. Leave in the text what ended it: the stop string, or the text of the stop token. "
        "That of a special token is shown only with `skip_special_tokens: false`.",
    )
    skip_special_tokens: bool | None = Field(
        None,
        description="Extension. false: show special tokens in the text. Those that mark reasoning and tool calls are "
        "read as such in any case. Default: true.",
    )
    spaces_between_special_tokens: Annotated[Any, ignored_fields.GENERATION["spaces_between_special_tokens"]] = None
    cache_prompt: Annotated[Any, ignored_fields.GENERATION["cache_prompt"]] = None
    timeout: float | None = Field(
        None, gt=0, description="Extension. Seconds after which the answer ends as it is, with finish_reason `timeout`."
    )
    priority: int | None = Field(
        None, ge=-MAX_INT, le=MAX_INT, description="Extension. Smaller goes first, if the server goes by priority."
    )
    cache_salt: str | None = Field(
        None,
        min_length=1,
        max_length=256,
        description="Extension. Cached prefixes are shared only between requests of the same salt.",
    )
    truncate_prompt_tokens: Truncation | None = TRUNCATE
    prompt_logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Extension. Log-probabilities of the prompt's tokens, and of this many likeliest ones at each "
        "place. Not with `stream`.",
    )
    return_token_ids: bool | None = Field(
        None,
        description="Extension. Send `prompt_token_ids` and `token_ids`. `logprobs` then has the token that ended "
        "the answer as well, so that the two go together.",
    )
    return_tokens_as_token_ids: bool | None = Field(
        None, description="Extension. Name tokens in log-probabilities by their ids, as `token_id:42`."
    )
    include_timings: bool | None = Field(
        None, description="Extension. Send `timings`; in a stream with its last chunk."
    )
    timings_per_token: bool | None = Field(
        None, description="Extension. Send `timings` as llama.cpp has them; in a stream with every chunk."
    )

    @model_validator(mode="after")
    def _check_stream(self) -> GenerationFields:
        if self.stream_options is not None and not self.stream:
            raise field_error("goes with stream: true only", "stream_options")
        if self.prompt_logprobs is not None and self.stream:
            raise field_error("cannot be streamed", "prompt_logprobs")
        return self

    @model_validator(mode="after")
    def _check_counts(self) -> GenerationFields:
        if self.best_of is not None and self.best_of != (self.n or 1):
            raise field_error("is not supported: leave it out, or send the value of n", "best_of")
        if None not in (asked := (self.max_tokens, self.max_completion_tokens)) and asked[0] != asked[1]:
            raise field_error(f"is {asked[1]}, but max_tokens, its older name, is {asked[0]}", "max_completion_tokens")
        return self

    def client_names(self) -> dict[str, str]:
        newer = self.max_tokens is None and self.max_completion_tokens is not None
        names = {"max_tokens": "max_completion_tokens"} if newer else {}
        return {**super().client_names(), **names, "stop_tokens": "stop_token_ids", "timeout_s": "timeout"}

    @property
    def shows_token_ids(self) -> bool:
        return bool(self.return_token_ids or self.return_tokens_as_token_ids)

    @property
    def token_limit(self) -> int | None:
        """By either name."""
        return self.max_completion_tokens if self.max_tokens is None else self.max_tokens


class ChatCompletionRequest(GenerationFields, ChatTemplateFields, ContextFields):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "messages": [{"role": "user", "content": "Hello!"}]}]}
    )

    messages: Messages = Field(description="The conversation so far.")
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=MAX_INT,
        description="Maximum number of tokens to generate. Default: what the server is set to, else to the end "
        "of the context.",
    )
    logprobs: bool | None = Field(None, description="Send the log-probability of each token of the answer.")
    top_logprobs: int | None = Field(
        None, ge=0, le=MAX_LOGPROBS, description="And of this many likeliest tokens at its place. Needs `logprobs`."
    )
    store: bool | None = Field(None, description="Keep the completion: `GET /v1/chat/completions`. Default: false.")
    metadata: Metadata | None = Field(
        None, description="The client's own notes, by which kept completions are found. Else taken and not used."
    )
    safety_identifier: str | None = Field(None, description=LABELS["safety_identifier"])
    prompt_cache_key: str | None = Field(None, description=LABELS["prompt_cache_key"])

    tools: Tools | None = Field(None, description="What the model may call. Calls keep to the schemas given here.")
    tool_choice: ToolChoice | None = Field(
        None,
        description="Whether a tool is called: the model decides (`auto`, the default), never, at least one, this one.",
    )
    parallel_tool_calls: bool | None = Field(None, description="Whether one answer may have several. Default: true.")
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = Field(
        None,
        description="How much to think before answering, where the model's chat template has a say in that; `none` and "
        "`minimal` switch it off. Default: what the template has.",
    )
    enable_thinking: bool | None = Field(
        None, description="Extension. Whether to think before answering. Default: what the model's chat template has."
    )
    thinking_token_budget: int | None = Field(
        None,
        ge=0,
        le=MAX_INT,
        description="Extension. Maximum number of reasoning tokens: reasoning is closed there, and the answer "
        "begins. 0: none. "
        "For models that think.",
    )
    reasoning_budget: int | None = Field(
        None, ge=-1, le=MAX_INT, description="Extension. llama.cpp's name of `thinking_token_budget`; -1: no bound."
    )
    include_drafts: bool | None = Field(
        None,
        description="Extension. Send `drafts` with the chunks of a stream: what speculation drafted in each step, and "
        "what the model drew. Not where the server filters outputs.",
    )
    include_reasoning: bool | None = Field(
        None, description="Extension. false: leave out what the model thought. Default: true."
    )
    functions: Annotated[Any, ignored_fields.CHAT["functions"]] = None
    function_call: Annotated[Any, ignored_fields.CHAT["function_call"]] = None
    service_tier: Annotated[Any, ignored_fields.CHAT["service_tier"]] = None
    modalities: Annotated[Any, ignored_fields.CHAT["modalities"]] = None
    audio: Annotated[Any, ignored_fields.CHAT["audio"]] = None
    verbosity: Annotated[Any, ignored_fields.CHAT["verbosity"]] = None
    prediction: Annotated[Any, ignored_fields.CHAT["prediction"]] = None
    web_search_options: Annotated[Any, ignored_fields.CHAT["web_search_options"]] = None
    moderation: Annotated[Any, ignored_fields.CHAT["moderation"]] = None
    prompt_cache_options: Annotated[Any, ignored_fields.CHAT["prompt_cache_options"]] = None
    prompt_cache_retention: Annotated[Any, ignored_fields.CHAT["prompt_cache_retention"]] = None

    @model_validator(mode="after")
    def _check_pairs(self) -> ChatCompletionRequest:
        if self.top_logprobs is not None and not self.logprobs:
            raise field_error("needs logprobs: true", "top_logprobs")
        if self.include_drafts and not self.stream:
            raise field_error("goes with stream: true only", "include_drafts")
        if self.tool_choice not in (None, "none", "auto") and not self.tools:
            raise field_error("needs tools", "tool_choice")
        if None not in (asked := (self.thinking_token_budget, self.reasoning_budget)) and asked[0] != asked[1]:
            raise field_error(f"is {asked[1]}, but thinking_token_budget is {asked[0]}", "reasoning_budget")
        return self

    def client_names(self) -> dict[str, str]:
        budget = "reasoning_budget" if self.thinking_token_budget is None else "thinking_token_budget"
        return {**super().client_names(), "thinking_budget": budget}

    @property
    def thinking_budget(self) -> int | None:
        """By either name."""
        asked = self.reasoning_budget if self.thinking_token_budget is None else self.thinking_token_budget
        return None if asked == -1 else asked


class CompletionRequest(GenerationFields):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "prompt": "The capital of France is", "max_tokens": 8}]}
    )

    prompt: Prompts = Field(description="What to continue: a text or token ids, or a list of up to 2048 of either.")
    max_tokens: int | None = Field(
        None,
        ge=0,
        le=MAX_INT,
        description="Maximum number of tokens to generate per choice. Default: 16. 0, with `echo` or "
        "`prompt_logprobs`: none, the prompt is "
        "only scored.",
    )
    echo: bool | None = Field(None, description="Put the prompt in front of the answer.")
    logprobs: int | None = Field(
        None,
        ge=0,
        le=MAX_LOGPROBS,
        description="Send the log-probability of each token, and of this many likeliest ones. With `echo` those of the "
        "prompt too. OpenAI's bound is 5.",
    )
    suffix: Annotated[Any, ignored_fields.COMPLETIONS["suffix"]] = None

    @model_validator(mode="after")
    def _check_pairs(self) -> CompletionRequest:
        if self.max_tokens == 0 and not self.echo and self.prompt_logprobs is None:
            raise field_error("must be at least 1, or go with echo or prompt_logprobs", "max_tokens")
        return self
