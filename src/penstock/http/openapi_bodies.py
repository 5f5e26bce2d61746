"""All bodies of all APIs, for /openapi.json."""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from pydantic import BaseModel

from penstock.http.api import capacity_routes, model_card, tokenizer_routes, usage_routes
from penstock.http.api.admin import adapter_bodies, limit_routes, model_routes
from penstock.http.api.admin import bodies as admin
from penstock.http.api.anthropic import messages
from penstock.http.api.anthropic import models as anthropic_models
from penstock.http.api.ollama import openapi_bodies as ollama
from penstock.http.api.openai import chat, completions, embeddings, file_bodies, moderations, rerank, stored_completions
from penstock.http.api.responses import writer as responses
from penstock.http.debug import sampling_lab
from penstock.http.error_body import ErrorBody
from penstock.http.openapi import schemas

REQUESTS: tuple[type[BaseModel], ...] = (
    chat.REQUEST,
    completions.REQUEST,
    embeddings.REQUEST,
    rerank.REQUEST,
    moderations.REQUEST,
    *tokenizer_routes.REQUESTS,
    stored_completions.StoredUpdate,
    *file_bodies.REQUESTS,
    *capacity_routes.REQUESTS,
    *sampling_lab.REQUESTS,
    *responses.REQUESTS,
    *messages.REQUESTS,
    *ollama.REQUESTS,
)
ANSWERS: tuple[type[Struct], ...] = (
    chat.RESPONSE,
    chat.CHUNK,
    completions.RESPONSE,
    embeddings.RESPONSE,
    rerank.RESPONSE,
    moderations.RESPONSE,
    model_card.Model,
    model_card.ModelList,
    *model_routes.ANSWERS,
    *adapter_bodies.ANSWERS,
    *admin.ANSWERS,
    *limit_routes.ANSWERS,
    *usage_routes.ANSWERS,
    *tokenizer_routes.ANSWERS,
    stored_completions.StoredList,
    stored_completions.StoredDeleted,
    *file_bodies.ANSWERS,
    *capacity_routes.ANSWERS,
    ErrorBody,
    *responses.ANSWERS,
    *messages.ANSWERS,
    *anthropic_models.ANSWERS,
    *ollama.ANSWERS,
)


def components() -> dict[str, Any]:
    """The document's `components.schemas`."""
    return schemas.components(REQUESTS, ANSWERS)
