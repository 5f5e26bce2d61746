"""Context assembly in a request: the documents that come with it, and the trace of what became of its parts."""

from __future__ import annotations

from typing import Literal

import msgspec

PartKind = Literal["system", "schema", "document", "summary", "turn", "user", "template"]
HelperKind = Literal["summary", "embedding", "reranker"]
Action = Literal["kept", "cut", "dropped", "summarized", "added"]


class Document(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    text: str
    title: str | None = None
    score: float | None = None  # larger is better
    pinned: bool = False  # kept whole, in front of the conversation


class ContextPart(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a prompt, or several alike in a row. `tokens` are those in the prompt."""

    kind: PartKind
    action: Action
    tokens: int
    id: str | None = None  # of a document; of turns their numbers from 1, such as "3" or "3-7"
    given_tokens: int | None = None  # as it came, where that differs; None: as `tokens`, or not counted
    score: float | None = None
    why: str = ""


class HelperCall(msgspec.Struct, frozen=True, kw_only=True):
    """What a model was asked that served the assembly, charged to the client's request."""

    kind: HelperKind
    model: str  # that answered
    requests: int
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int = 0  # of the prompts
    cost_usd: float | None = None  # None: the model has no price


class ContextTrace(msgspec.Struct, frozen=True, kw_only=True):
    """What became of each part. The tokens of the parts add up to `prompt_tokens`."""

    model: str
    limit: int  # tokens of prompt and output together
    reserved_output: int
    prompt_tokens: int
    history: str  # the policy
    rank: str | None = None  # of the documents; None: there are none
    placement: str | None = None
    parts: tuple[ContextPart, ...] = ()
    calls: tuple[HelperCall, ...] = ()
