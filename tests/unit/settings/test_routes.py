"""[[routes]] of a settings file."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.errors import InvalidSetting
from penstock.settings import load

MODELS = (
    '[[models]]\nname = "a"\nmodel = "smollm2"\n[[models]]\nname = "b"\nupstream = "http://x/v1"\naliases = ["c"]\n'
)


def routes(tmp_path: Path, text: str) -> list[tuple[str, tuple[str, ...], str]]:
    file = tmp_path / "penstock.toml"
    file.write_text(MODELS + text)
    return [(one.name, one.models, one.policy) for one in load(environ={}, file=file).routes]


def test_routes_lead_to_models_by_name_or_alias(tmp_path: Path) -> None:
    auto = '[[routes]]\nname = "auto"\nmodels = ["a", "c:latest"]\n'
    cheap = '[[routes]]\nname = "cheap"\nmodels = ["b"]\npolicy = "cost"'
    assert routes(tmp_path, auto + cheap) == [("auto", ("a", "c:latest"), "size"), ("cheap", ("b",), "cost")]
    assert routes(tmp_path, "") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[[routes]]\nname = "auto"\nmodels = ["x"]', r"routes\[0\] \(auto\): models: there is no model 'x'"),
        ('[[routes]]\nname = "auto"\nmodels = []', r"routes\[0\] \(auto\): models must be"),
        ('[[routes]]\nname = "c"\nmodels = ["a"]', r"name: 'c' is taken"),
        ('[[routes]]\nname = "a b"\nmodels = ["a"]', r"routes\[0\] \(a b\): name must"),
        ('[[routes]]\nname = "auto"\nmodels = ["a"]\npolicy = "best"', r"routes\[0\] \(auto\): policy"),
        (
            '[[routes]]\nname = "auto"\nmodels = ["a"]\npolicies = "size"',
            "there is no setting policies; known: name",
        ),
        ('[routes]\nname = "auto"', "routes must be a list of tables"),
        ('[[routes]]\nname = "r"\nmodels = ["a"]\n[[routes]]\nname = "s"\nmodels = ["r"]', "there is no model 'r'"),
    ],
)
def test_what_is_wrong_with_a_route_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        routes(tmp_path, text)
