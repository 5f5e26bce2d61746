"""The two ends of the pipeline: a client's request, and the chunks and the completion it gets back."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.flow.adapter import Adapter
from penstock.flow.context import ContextTrace, Document
from penstock.flow.messages import STANDARD_TIER, FinishReason, Pooling, Task, Timings, TokenLogprobs
from penstock.flow.params import SamplingParams
from penstock.flow.tools import CallDelta, ToolCall, ToolUse
from penstock.settings.context import ContextSettings

# A chat message as templates see it: {"role": ..., "content": ..., ...}. Templates of different families read
# different keys, so it stays a mapping; `http` and `offline` validate it.
Message = dict[str, Any]


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One parsed request. Exactly one of `text`, `tokens` and `messages` is set.

    An embedding samples no tokens: of its `params` only the timeout counts.
    """

    id: str
    params: SamplingParams
    text: str | None = None
    tokens: list[int] | None = None
    messages: list[Message] | None = None
    template_arguments: dict[str, Any] = {}
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    fit_context: bool = False  # lower `max_tokens` to what fits the context, instead of rejecting the request
    priority: int = 0  # smaller runs first, under the priority policy
    tier: int = STANDARD_TIER  # as in Submit
    weight: float = 1.0  # as in Submit
    background: bool = False  # of a batch: runs behind all others and yields to them
    salt: str = ""  # cached prefixes are shared among requests of the same tenant and salt only
    tenant: str = ""  # its owner; "": the default tenant
    task: Task = "generate"
    pooling: Pooling = "mean"  # for embeddings
    tools: ToolUse | None = None
    reasoning_effort: str | None = None  # for templates that have it
    thinking_budget: int | None = None  # limit of reasoning tokens, after which the reasoning is closed; 0: none
    enable_thinking: bool | None = None  # for templates that have the switch; None: the template's default
    forced: int = 0  # as in Submit
    inspect: int = 0  # as in Submit
    truncate_prompt_tokens: int | None = None  # keep the last so many; -1: those that fit; None: all, or reject
    documents: tuple[Document, ...] = ()  # until they are placed in the messages (`gateway.context`)
    context: ContextSettings | None = (
        None  # how the prompt is assembled, until it is; None: as the model's defaults say
    )
    context_trace: ContextTrace | None = None  # of a prompt that was assembled, if the response is to have it
    include_drafts: bool = False  # as in Submit
    adapter: Adapter | None = None  # as in Submit
    shows_token_ids: bool = False  # the response has token ids, or texts of the prompt's tokens
    warnings: tuple[str, ...] = ()  # for the client: fields that were accepted without effect


class Trace(msgspec.Struct, frozen=True):
    """A request's place in a distributed trace (W3C Trace Context), in lower-case hex."""

    id: str
    span: str  # of the request itself
    parent: str | None  # the client's span
    flags: int  # 1: sampled


class DraftedStep(msgspec.Struct, frozen=True):
    """Tokens that a step added to a choice, and those that were drafted for it: the first of both are the same, up to
    a draft that was wrong."""

    drafted: list[int]
    tokens: list[int]

    @property
    def accepted(self) -> int:
        most = min(len(self.drafted), len(self.tokens))
        return next((place for place in range(most) if self.drafted[place] != self.tokens[place]), most)


class Chunk(msgspec.Struct, frozen=True):
    """A piece of one choice that can be sent: text that no later token can change.

    `text` is the answer, without reasoning and tool calls.
    """

    choice: int
    text: str
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None = None
    finish: FinishReason | None = None
    stop: str | int | None = None  # the stop string or stop token that ended it
    reasoning: str = ""
    calls: tuple[CallDelta, ...] = ()
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # of the prompt, with the first chunk of choice 0
    hidden_tokens: int = 0  # as in Choice, with the last chunk
    drafts: tuple[DraftedStep, ...] = ()  # on request: the steps that its tokens come from


class Choice(msgspec.Struct):
    """One finished output of a request."""

    index: int  # 0 .. n - 1
    text: str  # the answer, without reasoning, tool calls and the stop string
    tokens: list[int]  # all output tokens, also of what `text` leaves out
    finish: FinishReason  # why it ended
    stop: str | int | None = None  # the stop string or stop token that ended it
    logprobs: list[TokenLogprobs] | None = None  # [tokens], if requested
    timings: Timings | None = None
    reasoning: str | None = None  # None: the model's output has no reasoning part
    calls: tuple[ToolCall, ...] = ()
    reasoning_tokens: int = 0  # of all output tokens
    hidden_tokens: int = 0  # generated as well, but kept from the client by a safety rule

    @property
    def output_tokens(self) -> int:
        """All that were generated, which is what usage counts."""
        return len(self.tokens) + self.hidden_tokens

    @property
    def per_token_s(self) -> float | None:
        """Mean time between two output tokens."""
        if self.timings is None or self.timings.decode_s is None or self.output_tokens < 2:
            return None
        return self.timings.decode_s / (self.output_tokens - 1)


class Completion(msgspec.Struct):
    """The result of one request. `text`, `tokens`, `calls` and `finish` are those of its first choice."""

    id: str
    prompt_tokens: list[int]
    choices: list[Choice]
    cached_tokens: int = 0  # of the prompt, found in the prefix cache
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # the first prompt token has none
    usage_estimated: bool = False  # the counts of tokens are an estimate: an upstream reported none
    cost_usd: float | None = None  # of the whole HTTP request, all prompts together; None: the model has no price
    context: ContextTrace | None = None  # how the prompt was assembled
    error: str | None = None  # set if a choice finished with FinishReason.ERROR
    error_code: str | None = None
    warnings: tuple[str, ...] = ()  # fields of the request that were accepted without effect

    @property
    def text(self) -> str:
        return self.choices[0].text

    @property
    def tokens(self) -> list[int]:
        return self.choices[0].tokens

    @property
    def calls(self) -> tuple[ToolCall, ...]:
        return self.choices[0].calls

    @property
    def finish(self) -> FinishReason:
        return self.choices[0].finish


class Embedding(msgspec.Struct, frozen=True):
    """The embedding of a text: its hidden states after the final norm, pooled and normalized."""

    vector: list[float]  # of unit length
    prompt_tokens: int
