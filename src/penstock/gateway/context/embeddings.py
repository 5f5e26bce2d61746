"""Documents by the embeddings of a served model: the most similar to the query first."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from msgspec.structs import replace

from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ServedModel
from penstock.flow import Request
from penstock.flow.context import Document
from penstock.gateway.context.helper_models import owned_request
from penstock.gateway.context.turns import CHARS_PER_TOKEN

DEFAULT_WINDOW = 2048  # tokens of a model whose context is not known


def embedding_requests(
    request: Request, request_id: str, query: str, documents: Sequence[Document], model: ServedModel
) -> list[Request]:
    """The query's, then one for each document. Long texts are embedded by their beginning."""
    characters = (model.card.context or DEFAULT_WINDOW) * CHARS_PER_TOKEN // 2
    texts = [query[-characters:], *(f"{one.title or ''}\n{one.text}".strip()[:characters] for one in documents)]
    # Texts with many short tokens, such as Chinese ones, may still be too long; an upstream is not asked to truncate.
    truncate = -1 if isinstance(model, LocalModel) else None
    owned = replace(owned_request(request, request_id), task="embed", truncate_prompt_tokens=truncate)
    return [replace(owned, id=f"{request_id}-{number}", text=text or " ") for number, text in enumerate(texts)]


def similarities(vectors: Sequence[bytes]) -> list[float]:
    """Cosines of the first vector with the others, which are of unit length."""
    query, *others = [struct.unpack(f"<{len(vector) // 4}f", vector) for vector in vectors]
    return [round(sum(left * right for left, right in zip(query, other, strict=True)), 4) for other in others]
