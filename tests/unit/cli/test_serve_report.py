"""What a server says when it is ready."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.adapter_samples import write_adapter
from helpers.base_model import Base
from helpers.model_specs import small_spec
from penstock.cli.serve import MAX_NAMED_ADAPTERS, _announce
from penstock.deployment.adapter_model import AdapterModel
from penstock.deployment.registry import ModelRegistry
from penstock.store.adapter import open_adapter


def announced(registry: ModelRegistry, capsys: pytest.CaptureFixture[str]) -> list[str]:
    said: list[str] = []
    _announce(registry, said.append, True, "http://127.0.0.1:8000")
    assert said == ["ready"]
    return [line.strip() for line in capsys.readouterr().err.splitlines() if line.strip()]


def test_adapters_are_named_as_long_as_they_are_few(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = open_adapter(write_adapter(tmp_path / "style", small_spec()))
    small, large = Base("small"), Base("large")
    registry = ModelRegistry([small, large])
    for number in range(MAX_NAMED_ADAPTERS):
        registry.add(AdapterModel(small, f"a{number}", files))
    for number in range(1000):
        registry.add(AdapterModel(large, f"b{number}", files))
    lines = announced(registry, capsys)
    names = [line.split()[0] for line in lines]
    few = [f"small@a{number}" for number in range(MAX_NAMED_ADAPTERS)]
    assert names == ["url", "small", "large", *few, "large@…", "interface", "docs"]
    assert "1,000 adapters" in lines[-3]
