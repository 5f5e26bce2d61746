from __future__ import annotations

from pathlib import Path

import pytest

from penstock import assemble, settings
from penstock.flow import SamplingParams
from penstock.store.disk import CACHE_VARIABLE
from store_samples import LLAMA, TOKENIZER, write_gguf


def test_recommendations_out_of_bounds_are_ignored_and_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They would fail every request that does not say otherwise."""
    recommended = {"temp": -1.0, "top_k": 2.5, "top_p": 0.5, "min_p": 1.5, "penalty_repeat": 0.0}
    metadata = {f"general.sampling.{name}": value for name, value in recommended.items()}
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    path = write_gguf(tmp_path / "x.gguf", metadata=LLAMA | TOKENIZER | metadata)

    found = assemble.model(settings.load({"model": str(path)}, environ={}))

    assert found.sampling == {"top_p": 0.5}
    SamplingParams(**found.sampling)  # type: ignore[arg-type]
    told = [record.getMessage() for record in caplog.records]
    assert len(told) == 4
    assert all(text.startswith("x recommends a sampling that cannot be, and is ignored: ") for text in told)
    for words in ("temperature must be in [0.0, 100.0], got -1.0", "top_k must be", "min_p", "repetition_penalty"):
        assert sum(words in text for text in told) == 1
