"""The bodies of requests and answers, for /openapi.json."""

from __future__ import annotations

import msgspec
from pydantic import BaseModel

from penstock.intake.ollama import answers, schemas
from penstock.intake.ollama.problems import OllamaErrorBody

REQUESTS: tuple[type[BaseModel], ...] = (
    schemas.OllamaChatRequest,
    schemas.OllamaGenerateRequest,
    schemas.OllamaEmbedRequest,
    schemas.OllamaEmbeddingsRequest,
    schemas.OllamaShowRequest,
    schemas.OllamaPullRequest,
)
ANSWERS: tuple[type[msgspec.Struct], ...] = (
    answers.OllamaChatAnswer,
    answers.OllamaGenerateAnswer,
    answers.OllamaEmbeddingList,
    answers.OllamaEmbedding,
    answers.OllamaModelList,
    answers.OllamaRunningList,
    answers.OllamaModelInfo,
    answers.OllamaVersion,
    answers.OllamaStatus,
    OllamaErrorBody,
)
