"""A local model without engines, for what is about its names and adapters only."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from helpers.model_specs import small_spec
from penstock.deployment.local_model import LocalModel
from penstock.deployment.protocol import ModelCard, Price, State


class Base(LocalModel):
    def __init__(self, name: str, **fields: Any) -> None:
        self.card = ModelCard(name=name, context=128, price=Price(input=1.0), **fields)
        self.replicas = cast(Any, SimpleNamespace(state=State.READY, replicas=[], open=0, facts={}))
        self.files = cast(Any, SimpleNamespace(spec=small_spec(), sampling={}))
        self.pipeline = self.tokenizer = cast(Any, None)
