from __future__ import annotations

import json
from types import SimpleNamespace
from typing import cast

from openai.types import Model as SdkModel

from penstock.deployment.protocol import ModelCard, Price, ServedModel, State
from penstock.http.api import model_card

CARD = ModelCard(
    name="tiny",
    aliases=("small",),
    context=128,
    price=Price(input=0.5, output=1.5),
    capabilities=frozenset({"tools", "chat"}),
    weights="int4",
    drafts="lookup",
    recommended={"temperature": 0.2, "max_tokens": 512},
    created=1_700_000_000,
)
MODEL = model_card.describe(cast(ServedModel, SimpleNamespace(card=CARD, state=State.READY)))


def test_models() -> None:
    one = model_card.encode_model(MODEL)

    SdkModel.model_validate_json(one, strict=True)
    assert json.loads(one) == {
        "id": "tiny",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "penstock",
        "parent": None,
        "max_model_len": 128,
        "state": "ready",
        "capabilities": ["chat", "tools"],
        "aliases": ["small"],
        "price": {"input": 0.5, "output": 1.5, "cached_input": None},
        "weights": "int4",
        "drafts": "lookup",
        "recommended": {"temperature": 0.2, "max_tokens": 512},
    }
    assert json.loads(model_card.encode_models([MODEL])) == {"object": "list", "data": [json.loads(one)]}
