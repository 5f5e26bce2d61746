"""Models as GET /v1/models and the routes of operators show them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import msgspec

from penstock.deployment.protocol import Price, ServedModel
from penstock.http.api.response_bodies import Body


class Model(Body, kw_only=True, frozen=True):
    id: str
    object: Literal["model"] = "model"
    created: int  # seconds since 1970: when it was loaded
    owned_by: str = "penstock"
    # Extensions:
    max_model_len: int | None  # tokens the context holds; null: not known
    state: str  # "ready", "unloaded", …
    capabilities: list[str]
    aliases: list[str]
    parent: str | None  # of a LoRA adapter: the model that it changes
    price: Price | None  # per million tokens
    weights: str | None  # what they are kept as: "bfloat16", "int4", "Q4_K_M", …; null: not known
    drafts: str | None  # what drafts tokens (`--speculate`): "off", "lookup", "eagle", …; null: not known
    recommended: dict[str, float | int]  # sampling, by the model's authors, and `max_tokens` for a chat


class ModelList(Body, kw_only=True, frozen=True):
    object: Literal["list"] = "list"
    data: list[Model]


def describe(model: ServedModel) -> Model:
    card = model.card
    return Model(
        id=card.name,
        created=card.created,
        owned_by=card.owner,
        max_model_len=card.context,
        state=model.state.value,
        capabilities=sorted(card.capabilities),
        aliases=list(card.aliases),
        parent=card.parent,
        price=card.price,
        weights=card.weights,
        drafts=card.drafts,
        recommended=card.recommended,
    )


def encode_model(model: Model) -> bytes:
    return msgspec.json.encode(model)


def encode_models(models: Sequence[Model]) -> bytes:
    return msgspec.json.encode(ModelList(data=list(models)))
