"""POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from msgspec import UNSET, UnsetType
from pydantic import ConfigDict, Field

from penstock.flow import Request, SamplingParams
from penstock.http.api.fields import MODEL, StrictModel
from penstock.http.api.ignored_fields import LABELS
from penstock.http.api.openai.ignored_fields import EMBEDDINGS
from penstock.http.api.openai.prompts import (
    TRUNCATE,
    Prompts,
    Truncation,
    single_prompts,
)
from penstock.http.api.response_bodies import Body

DEFAULT_POOLING: Literal["mean"] = "mean"


class EmbeddingRequest(StrictModel):
    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "smollm2", "input": ["A river.", "A turbine."]}]}
    )

    model: str | None = MODEL
    input: Prompts = Field(description="What to embed: a text or token ids, or a list of up to 2048 of either.")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="Numbers, or base64 of little-endian 32-bit floats. Default: float."
    )
    pooling: Literal["mean", "last"] | None = Field(
        None, description="Extension. Of the last hidden states, the mean or that of the last token. Default: mean."
    )
    truncate_prompt_tokens: Truncation | None = TRUNCATE
    user: str | None = Field(None, description=LABELS["user"])
    dimensions: Annotated[Any, EMBEDDINGS["dimensions"]] = None


class Embedding(Body, kw_only=True, frozen=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str  # a string: base64 of little-endian 32-bit floats


class EmbeddingUsage(Body, kw_only=True, frozen=True):
    prompt_tokens: int
    total_tokens: int
    cost_usd: float | UnsetType = UNSET  # extension: of a model with a price


class EmbeddingList(Body, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


Vector = Sequence[float] | bytes  # bytes: little-endian 32-bit floats

REQUEST = EmbeddingRequest
RESPONSE = EmbeddingList


def to_requests(body: EmbeddingRequest, *, request_id: str) -> list[Request]:
    """One for each input, in order."""
    return [
        Request(
            id=f"{request_id}-{index}",
            params=SamplingParams(),
            text=text_or_tokens if isinstance(text_or_tokens, str) else None,
            tokens=None if isinstance(text_or_tokens, str) else text_or_tokens,
            task="embed",
            pooling=body.pooling or DEFAULT_POOLING,
            truncate_prompt_tokens=body.truncate_prompt_tokens,
        )
        for index, text_or_tokens in enumerate(single_prompts(body.input))
    ]


def encode_embeddings(
    body: EmbeddingRequest,
    vectors: Sequence[Vector],
    *,
    model: str,
    prompt_tokens: int,
    cost_usd: float | None = None,
) -> bytes:
    """`vectors` are in the order of the inputs, `prompt_tokens` the sum over all of them."""
    cost = UNSET if cost_usd is None else cost_usd
    write = _to_base64 if body.encoding_format == "base64" else _to_floats
    # One by one: encoding a million numbers at once holds the interpreter lock for a tenth of a second.
    data = [
        msgspec.Raw(msgspec.json.encode(Embedding(index=index, embedding=write(vector))))
        for index, vector in enumerate(vectors)
    ]
    return msgspec.json.encode(
        EmbeddingList(
            data=cast(list[Embedding], data),
            model=model,
            usage=EmbeddingUsage(prompt_tokens=prompt_tokens, total_tokens=prompt_tokens, cost_usd=cost),
        )
    )


def _to_floats(vector: Vector) -> list[float]:
    return list(struct.unpack(f"<{len(vector) // 4}f", vector)) if isinstance(vector, bytes) else list(vector)


def _to_base64(vector: Vector) -> str:
    packed = vector if isinstance(vector, bytes) else struct.pack(f"<{len(vector)}f", *vector)
    return base64.b64encode(packed).decode()
