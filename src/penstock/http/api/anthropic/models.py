"""Models as Anthropic's GET /v1/models lists them, page by page."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal

import msgspec

from penstock.deployment.protocol import ServedModel
from penstock.errors import InvalidRequest
from penstock.http.api.response_bodies import Body, TaggedBody
from penstock.http.parse.query import Parameter

BETA = Parameter(name="beta", description="What the SDK's `beta.models` sends.", choices=("true",))
PAGE = (
    Parameter(name="limit", description="Most models of a page.", type="integer", bounds=(1, 1000), default=20),
    Parameter(name="after_id", description="The id of the model behind which the page begins."),
    Parameter(name="before_id", description="The id of the model before which the page ends."),
    Parameter(
        name="lifecycle",
        description="Only models of these stages: here all are active.",
        type="array",
        choices=("active", "deprecated", "retired"),
    ),
    BETA,
)


class AnthropicModel(TaggedBody, kw_only=True, frozen=True, tag="model"):
    id: str
    display_name: str
    created_at: datetime  # when it was loaded; 1970: not known
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None  # tokens the context holds; null: not known


class AnthropicModelList(Body, kw_only=True, frozen=True):
    data: list[AnthropicModel]
    has_more: bool  # behind the page, or before it with `before_id`
    first_id: str | None
    last_id: str | None


ANSWERS = (AnthropicModel, AnthropicModelList)


def describe(model: ServedModel) -> AnthropicModel:
    card = model.card
    created = datetime.fromtimestamp(card.created, UTC)
    return AnthropicModel(id=card.name, display_name=card.name, created_at=created, max_input_tokens=card.context)


def encode_model(model: AnthropicModel) -> bytes:
    return msgspec.json.encode(model)


def encode_page(
    models: Sequence[AnthropicModel],
    *,
    limit: int,
    after_id: str | None,
    before_id: str | None,
    lifecycle: Sequence[str],
    beta: str | None = None,
) -> bytes:
    """The arguments beside `models` are the values of PAGE; `beta` changes nothing."""
    if after_id is not None and before_id is not None:
        raise InvalidRequest("after_id and before_id exclude each other", param="before_id")
    reached = models
    if after_id is not None:
        reached = models[_place(models, "after_id", after_id) + 1 :]
    elif before_id is not None:
        reached = models[: _place(models, "before_id", before_id)]
    if lifecycle and "active" not in lifecycle:
        reached = []
    shown = reached[:limit] if before_id is None else reached[-limit:]
    first, last = (shown[0].id, shown[-1].id) if shown else (None, None)
    return msgspec.json.encode(
        AnthropicModelList(data=list(shown), has_more=len(reached) > len(shown), first_id=first, last_id=last)
    )


def _place(models: Sequence[AnthropicModel], param: str, name: str) -> int:
    for place, model in enumerate(models):
        if model.id == name:
            return place
    raise InvalidRequest(f"{param} is {name[:64]!r}, but no model has that id", param=param)
