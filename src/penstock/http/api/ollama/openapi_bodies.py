"""Request and response bodies, for /openapi.json."""

from __future__ import annotations

import msgspec
from pydantic import BaseModel

from penstock.http.api.ollama import response_bodies, schemas
from penstock.http.api.ollama.error_body import OllamaErrorBody

REQUESTS: tuple[type[BaseModel], ...] = (
    schemas.OllamaChatRequest,
    schemas.OllamaGenerateRequest,
    schemas.OllamaEmbedRequest,
    schemas.OllamaEmbeddingsRequest,
    schemas.OllamaShowRequest,
    schemas.OllamaPullRequest,
)
ANSWERS: tuple[type[msgspec.Struct], ...] = (
    response_bodies.OllamaChatAnswer,
    response_bodies.OllamaGenerateAnswer,
    response_bodies.OllamaEmbeddingList,
    response_bodies.OllamaEmbedding,
    response_bodies.OllamaModelList,
    response_bodies.OllamaRunningList,
    response_bodies.OllamaModelInfo,
    response_bodies.OllamaVersion,
    response_bodies.OllamaStatus,
    OllamaErrorBody,
)
