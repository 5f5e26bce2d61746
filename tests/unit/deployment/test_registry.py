from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from penstock.deployment.protocol import ModelCard, ServedModel
from penstock.deployment.registry import ModelRegistry
from penstock.errors import InvalidRequest, ModelNotFound


def served(name: str, *aliases: str) -> ServedModel:
    return cast(ServedModel, SimpleNamespace(card=ModelCard(name=name, aliases=aliases)))


def test_names_aliases_and_tags() -> None:
    small, large = served("small", "tiny"), served("large:70b")
    models = ModelRegistry([small, large])
    assert models.find(None) is models.default is small
    for name in ("small", "small:latest", "tiny", "tiny:latest"):
        assert models.find(name) is small
        assert models.name_of(name) == "small"
    assert models.find("large:70b") is large
    for name in ("large", "small:70b", "", "SMALL"):
        with pytest.raises(ModelNotFound, match="this server has 'small', 'large:70b'") as caught:
            models.find(name)
        assert models.name_of(name) is None
        assert caught.value.param == "model"
    with pytest.raises(ModelNotFound, match="the model 'small' has no adapter 'sql'"):
        models.find("tiny@sql")


def test_names_are_taken_once_and_free_again() -> None:
    models = ModelRegistry([served("a", "b")])
    with pytest.raises(InvalidRequest, match="the name 'b' is taken by the model 'a'"):
        models.add(served("c", "b"))
    models.add(served("c"))
    models.remove("b")
    models.add(served("b"))
    assert [model.card.name for model in models] == ["c", "b"]


def test_what_needs_an_engine_here() -> None:
    with pytest.raises(InvalidRequest, match="far is an upstream"):
        ModelRegistry([served("far")]).find_local("far")
