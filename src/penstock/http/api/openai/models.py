"""GET /v1/models and GET /v1/models/{id}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.http.api.response_bodies import Body


class Model(Body, kw_only=True, frozen=True):
    id: str
    object: Literal["model"] = "model"
    created: int  # seconds since 1970: when it was loaded
    owned_by: str = "penstock"
    max_model_len: int  # extension: tokens the context holds


class ModelList(Body, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[Model]


def encode_model(model: Model) -> bytes:
    return msgspec.json.encode(model)


def encode_models(models: Sequence[Model]) -> bytes:
    return msgspec.json.encode(ModelList(data=list(models)))
