"""Every step tells which blocks it takes, before it writes to them."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers import tiny_models
from helpers.native_paged_model import needs_library
from penstock import LLM, SamplingParams
from penstock.forward import native_backend
from penstock.kernels.arrays import Array


@needs_library
def test_memory_is_asked_for_as_blocks_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[list[int]] = []

    class Recorded:
        def __init__(self, blocks: Array) -> None:
            self.highest: list[int] = []
            groups.append(self.highest)

        def cover(self, highest: int) -> None:
            self.highest.append(highest)

    monkeypatch.setattr(native_backend, "Prefault", Recorded)
    folder = tiny_models.make("llama", tmp_path / "llama")
    settings = {"block_size": 8, "step_tokens": 64, "max_sequences": 4, "kv_memory": "20MB", "threads": 1}
    with LLM(str(folder), device="cpu", context=256, **settings) as llm:
        llm.generate([5] * 100, SamplingParams(max_tokens=21, ignore_eos=True))
    (highest,) = groups
    assert highest == sorted(highest)
    assert highest[0] >= 64 // 8
    assert highest[-1] == 120 // 8  # block 0 is nobody's, and the last token's keys are computed by nobody
