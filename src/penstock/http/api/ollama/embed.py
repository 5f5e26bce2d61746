"""POST /api/embed and POST /api/embeddings."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence

import msgspec
from msgspec import UNSET

from penstock.errors import InvalidRequest
from penstock.flow import Request, SamplingParams, Tokenizer
from penstock.http.api.ollama.keep_alive import UNLOAD_WARNING, asks_to_unload
from penstock.http.api.ollama.options import option_warnings
from penstock.http.api.ollama.response_bodies import OllamaEmbedding, OllamaEmbeddingList
from penstock.http.api.ollama.schemas import OllamaEmbeddingsRequest, OllamaEmbedRequest

MAX_SPECIAL = 8  # tokens that the tokenizer adds to a text, at most

# For `client_field_names`.
CLIENT_NAMES = {"input": "prompt"}


def texts_of(body: OllamaEmbedRequest | OllamaEmbeddingsRequest) -> list[str]:
    """The texts to embed: none if the client only asks to load the model."""
    if isinstance(body, OllamaEmbeddingsRequest):
        return [body.prompt] if body.prompt else []
    if isinstance(body.input, str):
        return [body.input] if body.input else []
    return body.input


def embed_requests(
    body: OllamaEmbedRequest | OllamaEmbeddingsRequest,
    *,
    request_id: str,
    context: int | None,
    hidden_size: int | None,
) -> list[Request]:
    """One for each text, in order. `hidden_size` of an upstream or a route is not known. Raises InvalidRequest."""
    dimensions = body.dimensions if isinstance(body, OllamaEmbedRequest) else None
    if dimensions is not None and hidden_size is None:
        raise InvalidRequest("dimensions needs a model that runs here", param="dimensions")
    if dimensions is not None and hidden_size is not None and dimensions > hidden_size:
        raise InvalidRequest(
            f"dimensions is {dimensions}, but this model's vectors have {hidden_size}", param="dimensions"
        )
    unload = (UNLOAD_WARNING,) if asks_to_unload(body.keep_alive) else ()
    return [
        Request(
            id=f"{request_id}-{place}",
            params=SamplingParams(),
            text=text,
            task="embed",
            warnings=(*unload, *option_warnings(body.options, context)),
        )
        for place, text in enumerate(texts_of(body))
    ]


def may_need_truncation(body: OllamaEmbedRequest | OllamaEmbeddingsRequest, context: int) -> bool:
    """Whether a text may be longer than the context, and may be truncated. A token has at least one byte."""
    allowed = not isinstance(body, OllamaEmbedRequest) or body.truncate is not False
    return allowed and any(4 * len(text) + MAX_SPECIAL > context for text in texts_of(body))


def truncate(requests: list[Request], tokenizer: Tokenizer, context: int) -> list[Request]:
    """With each text truncated to the first tokens that fit the context."""
    return [_truncate(request, tokenizer, context) for request in requests]


def _truncate(request: Request, tokenizer: Tokenizer, context: int) -> Request:
    """Tokenizes no more of the text than needed."""
    text = request.text or ""
    if len(text.encode()) + MAX_SPECIAL <= context:
        return request
    read = 8 * context
    while len(tokens := tokenizer.encode(text[:read], add_special=True)) <= context:
        if read >= len(text):
            return request
        read *= 2
    warning = f"a text that does not fit the context was truncated to its first {context} tokens"
    return msgspec.structs.replace(request, text=None, tokens=tokens[:context], warnings=(*request.warnings, warning))


def encode_embeddings(
    body: OllamaEmbedRequest,
    vectors: Sequence[bytes],
    *,
    prompt_tokens: int,
    total_duration: int,
    cost_usd: float | None = None,
) -> bytes:
    """`vectors` are little-endian 32-bit floats."""
    return msgspec.json.encode(
        OllamaEmbeddingList(
            model=body.model,
            embeddings=[_numbers(vector, body.dimensions) for vector in vectors],
            total_duration=total_duration,
            load_duration=0,  # it is loaded
            prompt_eval_count=prompt_tokens,
            cost_usd=UNSET if cost_usd is None else cost_usd,
        )
    )


def encode_embedding(vectors: Sequence[bytes]) -> bytes:
    """For the older route, which takes one text or none."""
    return msgspec.json.encode(OllamaEmbedding(embedding=_numbers(vectors[0], None) if vectors else []))


def _numbers(vector: bytes, dimensions: int | None) -> list[float]:
    numbers = list(struct.unpack(f"<{len(vector) // 4}f", vector))
    if dimensions is None or dimensions == len(numbers):
        return numbers
    kept = numbers[:dimensions]
    length = math.sqrt(sum(number * number for number in kept)) or 1.0
    return [number / length for number in kept]
