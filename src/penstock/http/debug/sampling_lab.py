"""The sampling lab: the model's logits after a prompt, through every stage of sampling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec
from pydantic import Field, model_validator

from penstock.errors import by_code
from penstock.flow import FinishReason, Request, SamplingParams
from penstock.flow.protocols import Vocabulary
from penstock.http.api.chat_messages import Messages, to_template
from penstock.http.api.fields import MAX_INT, MODEL, StrictModel, field_error
from penstock.http.api.generation_fields import LogitBias, TokenId, TokenIds
from penstock.http.api.response_format import ResponseFormat, to_constraint
from penstock.stream.active_request import ActiveRequest

MAX_TOP, DEFAULT_TOP = 200, 40
SHOWN_PROMPT = 64  # tokens, the last


class PromptFields(StrictModel):
    """Exactly one of `prompt`, `messages` and `tokens`."""

    model: str | None = MODEL
    prompt: str | None = Field(None, description="A text.")
    messages: Messages | None = Field(None, description="A conversation, which the model's chat template makes a text.")
    tokens: TokenIds | None = Field(None, description="Token ids.")

    @model_validator(mode="after")
    def _check_one(self) -> PromptFields:
        if sum(value is not None for value in (self.prompt, self.messages, self.tokens)) != 1:
            raise field_error("or messages or tokens is required, and only one of them", "prompt")
        return self

    def to_request(self, name: str, params: SamplingParams, **more: Any) -> Request:
        return Request(
            id=name,
            params=params,
            text=self.prompt,
            messages=None if self.messages is None else to_template(self.messages),
            tokens=self.tokens,
            **more,
        )


class LabParams(StrictModel):
    temperature: float | None = Field(None, ge=0, le=100)
    top_k: int | None = Field(None, ge=0, le=MAX_INT)
    top_p: float | None = Field(None, gt=0, le=1)
    min_p: float | None = Field(None, ge=0, le=1)
    typical_p: float | None = Field(None, gt=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    logit_bias: LogitBias | None = None
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)


class LabRequest(PromptFields):
    """What is not given in `params` changes nothing: temperature 1, no filters."""

    forced: Annotated[list[TokenId], Field(max_length=4096, fail_fast=True)] | None = Field(
        None, description="Token ids behind the prompt: the branch taken so far, which counts as output."
    )
    params: LabParams | None = Field(None, description="How to sample, as in a completion.")
    response_format: ResponseFormat | None = Field(None, description="What the answer must look like, likewise.")
    top: int | None = Field(None, ge=1, le=MAX_TOP, description="How many tokens to show. Default: 40.")


class ExplainRequest(PromptFields):
    cache_salt: str | None = Field(None, description="As in a completion.")
    replica: int | None = Field(None, ge=0, le=MAX_INT, description="Of the model, whose cache is asked. Default: 0.")


class ModelTraceRequest(PromptFields):
    layer: int | None = Field(None, ge=0, le=MAX_INT, description="Whose attention is shown. Default: 0.")
    position: int | None = Field(
        None,
        ge=0,
        le=MAX_INT,
        description="Of the token whose residual stream and logits are shown. Default: the last.",
    )


REQUESTS = (LabRequest, ExplainRequest, ModelTraceRequest)


def sampling_params(body: LabRequest) -> SamplingParams:
    given = {name: value for name, value in (body.params or ()) if value is not None}
    bias = {int(token): value for token, value in given.pop("logit_bias", {}).items()}
    constraint = to_constraint(body.response_format)
    return SamplingParams(**given, logit_bias=bias, max_tokens=1, constraint=constraint)


def encode_inspection(
    body: LabRequest, active_requests: Sequence[ActiveRequest], vocabulary: Vocabulary, vocab_size: int
) -> bytes:
    (active,) = active_requests
    found = active.inspection
    if found is None:
        message, code = active.error or ("the request ended without an answer", None)
        raise by_code(code, message)
    forced = body.forced or []
    tokens = active.submits[0].tokens
    prompt = tokens[: len(tokens) - len(forced)]
    sequence = active.choices[0]
    timings = sequence.timings
    drawn = sequence.finish not in (FinishReason.COMPLETE, FinishReason.DEAD_END) or bool(sequence.tokens)

    def named(token: int) -> dict[str, Any]:
        return {"id": token, "text": vocabulary.token_bytes(token).decode(errors="replace")}

    inspected = {
        "prompt_tokens": len(prompt),
        "cached_tokens": active.cached_tokens,
        "position": len(tokens),
        "vocab_size": vocab_size,
        "us": None if timings is None else round((timings.finished - timings.arrival) * 1e6),
        "tokens": [{**named(token), "logit": logit} for token, logit in zip(found.tokens, found.logits, strict=True)],
        "stages": [
            {
                "name": stage.name,
                "on": stage.on,
                "kept": stage.kept,
                "entropy_bits": stage.entropy_bits,
                "probs": stage.probs,
            }
            for stage in found.stages
        ],
        "drawn": named(found.drawn) if drawn else None,
        "finish": sequence.finish,
        "forced": [named(token) for token in forced],
        "end_tokens": list(active.submits[0].end_tokens),
        "prompt": [named(token) for token in prompt[-SHOWN_PROMPT:]],
    }
    return msgspec.json.encode(inspected)
