"""Response bodies and lines of streams as msgspec structs; /openapi.json is generated from them. Durations are in
nanoseconds."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from penstock.http.api.logprobs import TokenLogprob
from penstock.http.api.response_bodies import Body

# Extensions: `dead_end`, no token could continue what `format` requires; `content_filter`, a safety rule matched.
DoneReason = Literal["stop", "length", "load", "dead_end", "content_filter"]
Count = int | UnsetType


# --- chat and generate


class OllamaCalledFunction(Body, kw_only=True, frozen=True):
    index: int
    name: str
    arguments: Annotated[msgspec.Raw, msgspec.Meta(extra_json_schema={"type": "object"})]  # as the model wrote it


class OllamaToolCall(Body, kw_only=True, frozen=True):
    id: str
    function: OllamaCalledFunction


class OllamaReply(Body, kw_only=True, frozen=True):
    role: Literal["assistant"] = "assistant"
    content: str
    thinking: str | UnsetType = UNSET
    tool_calls: list[OllamaToolCall] | UnsetType = UNSET


class Line(Body, kw_only=True, frozen=True):
    """A whole answer, or a line of a stream. The last line has the counts and `done_reason`, and no text."""

    model: str
    created_at: datetime
    done: bool
    done_reason: DoneReason | UnsetType = UNSET
    total_duration: Count = UNSET
    load_duration: Count = UNSET
    prompt_eval_count: Count = UNSET
    prompt_eval_duration: Count = UNSET
    eval_count: Count = UNSET
    eval_duration: Count = UNSET
    cost_usd: float | UnsetType = UNSET  # extension: of a model with a price
    logprobs: list[TokenLogprob] | UnsetType = UNSET


class OllamaChatAnswer(Line, kw_only=True, frozen=True):
    message: OllamaReply


class OllamaGenerateAnswer(Line, kw_only=True, frozen=True):
    response: str
    thinking: str | UnsetType = UNSET


# --- embeddings


class OllamaEmbeddingList(Body, kw_only=True, frozen=True):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    load_duration: int
    prompt_eval_count: int
    cost_usd: float | UnsetType = UNSET  # extension


class OllamaEmbedding(Body, kw_only=True, frozen=True):
    embedding: list[float]


# --- models


class OllamaDetails(Body, kw_only=True, frozen=True):
    parent_model: str = ""
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(Body, kw_only=True, frozen=True):
    name: str
    model: str  # the same
    modified_at: datetime
    size: int  # bytes
    digest: str
    details: OllamaDetails


class OllamaModelList(Body, kw_only=True, frozen=True):
    models: list[OllamaModel]


class OllamaRunningModel(Body, kw_only=True, frozen=True):
    name: str
    model: str  # the same
    size: int  # bytes, with its KV cache
    digest: str
    details: OllamaDetails
    expires_at: datetime
    size_vram: int  # bytes; 0 on a CPU
    context_length: int


class OllamaRunningList(Body, kw_only=True, frozen=True):
    models: list[OllamaRunningModel]


class OllamaModelInfo(Body, kw_only=True, frozen=True):
    license: str | UnsetType = UNSET
    modelfile: str
    parameters: str
    template: str  # Jinja, not Go's
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: datetime


class OllamaVersion(Body, kw_only=True, frozen=True):
    version: str


class OllamaStatus(Body, kw_only=True, frozen=True):
    """A line of a pull. The last one's status is `success`."""

    status: str
    digest: str | UnsetType = UNSET
    total: Count = UNSET
    completed: Count = UNSET
