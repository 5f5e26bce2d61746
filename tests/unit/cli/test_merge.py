from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers import tiny_models
from helpers.adapter_samples import write_adapter
from helpers.model_specs import small_spec
from penstock.cli import penstock
from penstock.errors import InvalidRequest, WeightsMismatch
from penstock.store.resolve import resolve


def test_merge_writes_a_folder_that_can_be_served(tmp_path: Path) -> None:
    base = tiny_models.make("llama", tmp_path / "base")
    adapter = write_adapter(tmp_path / "adapter", resolve(str(base)).spec)
    arguments = ["merge", str(base), str(adapter), str(tmp_path / "out")]
    answer = CliRunner().invoke(penstock, arguments, catch_exceptions=False)
    assert "21 modules changed" in answer.output
    merged = resolve(str(tmp_path / "out"))
    assert (merged.spec.num_layers, merged.tokenizer is not None) == (3, True)
    other = write_adapter(tmp_path / "other", small_spec(hidden_size=32))
    with pytest.raises(WeightsMismatch, match="does not fit"):
        CliRunner().invoke(penstock, ["merge", str(base), str(other), str(tmp_path / "x")], catch_exceptions=False)


def test_run_takes_one_adapter() -> None:
    arguments = ["run", "hello", "--adapter", "a=x", "--adapter", "b=y"]
    with pytest.raises(InvalidRequest, match="give --adapter once"):
        CliRunner().invoke(penstock, arguments, catch_exceptions=False)
