from __future__ import annotations

from pathlib import Path

import pytest

from helpers.model_specs import small_spec
from penstock.errors import InvalidSetting
from penstock.settings import AdapterEntry, PriceSettings, from_wire, load, parse_entry, to_wire
from penstock.startup import preflight


def test_adapters_from_arguments_environment_and_file(tmp_path: Path) -> None:
    expected = (AdapterEntry(name="a", source="./x"), AdapterEntry(name="b", source="org/y"))
    assert load({"adapters": ["a=./x", "b=org/y"]}, environ={}).model.adapter_entries == expected
    assert load(environ={"PENSTOCK_ADAPTERS": "a=./x,b=org/y"}).model.adapter_entries == expected
    file = tmp_path / "penstock.toml"
    file.write_text(
        """
        [[models]]
        name = "m"
        model = "smollm2"
        adapters = [{ name = "a", source = "s", price = { input = 1.0 }, aliases = ["z"] }, "b=t"]
        [[models]]
        name = "n"
        model = "smollm2"
        [[routes]]
        name = "auto"
        models = ["m@a", "z", "n"]
        """
    )
    settings = load(environ={}, file=file)
    first, second = settings.models[0].model.adapter_entries
    assert (first.price, first.aliases, second.source) == (PriceSettings(input=1.0), ("z",), "t")
    assert settings.models[1].model.adapters == ()


@pytest.mark.parametrize("wrong", ["a", "=x", "a b=x", "a@b=x", "a/b=x", "a="])
def test_an_adapter_has_a_name_and_a_source(wrong: str) -> None:
    with pytest.raises(InvalidSetting, match="must be NAME=SOURCE") as error:
        load({"adapters": [wrong]}, environ={})
    assert error.value.param == "adapters"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('adapters = ["a=x", "a=y"]', "'a' is there twice"),
        ('adapters = [{ name = "a", source = "x", aliases = ["other"] }]', "'other' is a name of"),
        ('adapters = [{ name = "a", source = "x", colour = "red" }]', "colour"),
    ],
)
def test_names_of_adapters_are_unique(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "penstock.toml"
    entry = '[[models]]\nname = "{}"\nmodel = "smollm2"\n'
    file.write_text(entry.format("other") + entry.format("m") + text)
    with pytest.raises(InvalidSetting, match=message):
        load(environ={}, file=file)


def test_adapters_belong_to_one_model_and_not_to_engines() -> None:
    settings = load({"adapters": ["a=x"]}, environ={})
    assert to_wire(settings)["model"]["adapters"] == ()
    assert parse_entry({"name": "n", "model": "smollm2"}, settings).model.adapters == ()
    with pytest.raises(InvalidSetting, match="name them in its entry"):
        load({"adapters": ["a=x"]}, environ={}, models=["one", "two"])


def test_engines_are_told_that_there_are_adapters() -> None:
    """On a GPU their memory is taken at the start."""
    for options, expected in (
        ({}, None),
        ({"adapters": ["a=x"]}, "auto"),
        ({"adapters": ["a=x"], "adapter_memory": "3GiB"}, "3GiB"),
        ({"adapter_memory": "auto"}, "auto"),
    ):
        assert to_wire(load(options, environ={}))["cache"]["adapter_memory"] == expected


def test_the_ranks_of_an_engine_are_told_so_too() -> None:
    """By the engine, which was told."""
    settings = load({"adapters": ["a=x"], "tensor_parallel": 2}, environ={})
    preflight.check(settings, small_spec())
    assert from_wire(to_wire(from_wire(to_wire(settings)))).cache.adapter_memory == "auto"
