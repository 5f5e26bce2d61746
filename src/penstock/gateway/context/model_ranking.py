"""Documents by the embeddings of a served model: the most similar to the query first."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from penstock.flow import Request, SamplingParams
from penstock.flow.context import Document
from penstock.gateway.context.turns import CHARS_PER_TOKEN

MAX_EMBEDDED = 64  # documents; of more, the best by BM25
DEFAULT_WINDOW = 2048  # tokens of a model whose context is not known


def embedding_requests(
    request: Request, request_id: str, query: str, documents: Sequence[Document], context: int | None
) -> list[Request]:
    """The query's, then one for each document. Long texts are embedded by their beginning."""
    characters = (context or DEFAULT_WINDOW) * CHARS_PER_TOKEN // 2
    texts = [query[-characters:], *(f"{one.title or ''}\n{one.text}".strip()[:characters] for one in documents)]
    return [
        Request(
            id=f"{request_id}-{number}",
            params=SamplingParams(),
            text=text or " ",
            task="embed",
            tenant=request.tenant,
            tier=request.tier,
            weight=request.weight,
            priority=request.priority,
            background=request.background,
        )
        for number, text in enumerate(texts)
    ]


def similarities(vectors: Sequence[bytes]) -> list[float]:
    """Cosines of the first vector with the others, which are of unit length."""
    query, *others = [struct.unpack(f"<{len(vector) // 4}f", vector) for vector in vectors]
    return [round(sum(left * right for left, right in zip(query, other, strict=True)), 4) for other in others]
