"""Adapters are models of their own in the registry: `base@adapter`, by the bare name where that is unique."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.adapter_samples import write_adapter
from helpers.base_model import Base
from helpers.model_specs import small_spec
from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.protocol import ModelCard, Price
from penstock.deployment.registry import ModelRegistry
from penstock.errors import InvalidRequest, ModelNotFound
from penstock.store.adapter import open_adapter
from penstock.store.adapter_spec import AdapterFiles


@pytest.fixture
def files(tmp_path: Path) -> AdapterFiles:
    return open_adapter(write_adapter(tmp_path / "style", small_spec()))


def test_an_adapter_has_a_card_of_its_own(files: AdapterFiles) -> None:
    base = Base("m")
    registry = ModelRegistry([base])
    plain, priced = AdapterModel(base, "plain", files), AdapterModel(base, "priced", files, price=Price(output=3.0))
    registry.add(plain)
    registry.add(priced)
    assert (plain.card.name, plain.card.parent, plain.card.aliases) == ("m@plain", "m", ("plain",))
    assert (plain.card.price, priced.card.price) == (Price(input=1.0), Price(output=3.0))
    base.card = ModelCard(name="m", context=64)  # the engine has less memory
    assert (plain.card.context, plain.card.name, plain.card.aliases) == (64, "m@plain", ("plain",))
    assert plain.adapter.version == files.spec.version
    assert registry.local == [base]
    assert registry.adapters == [plain, priced]
    assert registry.find("plain:latest") is registry.find("m@plain") is plain


def test_the_bare_name_is_an_alias_while_it_is_unique(files: AdapterFiles) -> None:
    one, two = Base("one"), Base("two")
    registry = ModelRegistry([one, two])
    first, second = AdapterModel(one, "style", files), AdapterModel(two, "style", files)
    registry.add(first)
    assert registry.find("style") is first
    registry.add(second)
    assert (first.card.aliases, second.card.aliases) == ((), ())
    with pytest.raises(ModelNotFound, match="'one', 'two', 'one@style', 'two@style'"):
        registry.find("style")
    registry.remove("one@style")
    assert registry.find("style") is second
    registry.add(Base("style"))  # a model's name wins over an alias that nobody asked for
    assert registry.find("style").card.name == "style"
    assert second.card.aliases == ()
    registry.remove("style")
    assert registry.find("style") is second


def test_names_that_were_asked_for_are_not_taken_twice(files: AdapterFiles) -> None:
    base = Base("m")
    registry = ModelRegistry([base])
    registry.add(AdapterModel(base, "style", files, aliases=("nice",)))
    assert registry.find("nice").card.name == "m@style"
    with pytest.raises(InvalidRequest, match="'m@style' is taken"):
        registry.add(AdapterModel(base, "style", files))
    with pytest.raises(InvalidRequest, match="'nice' is taken by the model 'm@style'"):
        registry.add(AdapterModel(base, "other", files, aliases=("nice",)))
    with pytest.raises(InvalidRequest, match="'nice' is taken"):
        registry.add(Base("nice"))


def test_an_adapter_has_all_names_of_its_base(files: AdapterFiles) -> None:
    base = Base("m", aliases=("nick",))
    registry = ModelRegistry([base])
    registry.add(AdapterModel(base, "style", files))
    own = registry.allowed(["nick@style"])  # without the base
    for name in (
        "m@style",
        "m:latest@style",
        "m@style:latest",
        "m:latest@style:latest",
        "nick@style",
        "nick:latest@style",
    ):
        assert registry.find(name) is own.find(name) is registry.find("style")
        assert registry.name_of(name) == "m@style"
    with pytest.raises(ModelNotFound, match="the model 'm' has no adapter 'tone'; it has 'm@style'"):
        registry.find("nick:latest@tone")
    with pytest.raises(ModelNotFound):
        own.find("nick")


def test_an_unknown_adapter_is_answered_with_those_there_are(files: AdapterFiles) -> None:
    base = Base("m")
    registry = ModelRegistry([base])
    registry.add(AdapterModel(base, "style", files))
    with pytest.raises(ModelNotFound, match="the model 'm' has no adapter 'tone'; it has 'm@style'"):
        registry.find("m@tone")
    with pytest.raises(ModelNotFound, match="this server has 'm', 'm@style'"):
        registry.find("tone")


def test_a_key_may_use_an_adapter_without_its_base_and_the_other_way_round(files: AdapterFiles) -> None:
    base = Base("m")
    registry = ModelRegistry([base])
    registry.add(AdapterModel(base, "style", files))
    registry.add(AdapterModel(base, "tone", files))
    assert [model.card.name for model in registry.allowed(["m"])] == ["m"]
    assert [model.card.name for model in registry.allowed(["m@style"])] == ["m@style"]
    assert [model.card.name for model in registry.allowed(["tone", "m"])] == ["m", "m@tone"]
    own = registry.allowed(["style"])
    assert own.find("style") is own.find("m@style") is own.find(None) is registry.find("style")
    for hidden in ("m", "tone", "m@tone"):
        with pytest.raises(ModelNotFound):
            own.find(hidden)
    assert own.find_local("style").base is base
