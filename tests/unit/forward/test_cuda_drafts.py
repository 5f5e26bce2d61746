"""Steps with drafts of the CUDA backend: answers of a tiny model are the same as without, for a few requests.

Needs a CUDA device, or Triton's interpreter (TRITON_INTERPRET=1), where `helpers.interpreted_backend` is in its place.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

pytest.importorskip("triton", reason="triton is not installed")

from helpers import draft_heads
from helpers.draft_heads import speculate_setting
from helpers.recorded_drafts import FreeDrafts, RecordedDrafts
from helpers.tiny_requests import PROMPTS, REQUESTS
from helpers.triton_device import INTERPRETED, MARKS
from penstock import LLM
from penstock.forward import cuda_draft_model, cuda_proposer, cuda_speculation
from penstock.startup import build, decide

pytestmark = MARKS
KINDS = ("greedy", "penalties", "masks", "schema")
PARAMS = [msgspec.structs.replace(REQUESTS[kind], max_tokens=12, min_tokens=4, seed=3) for kind in KINDS]
TEXTS = PROMPTS[: len(KINDS)]


@pytest.fixture(autouse=True)
def _interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_speculation, "step_costs", lambda *_, **__: FreeDrafts())
    if INTERPRETED:
        reads = decide._drafts
        monkeypatch.setitem(build.BACKENDS, "torch", "helpers.interpreted_backend")
        monkeypatch.setattr(decide, "_drafts", lambda settings, files, _: reads(settings, files, "cuda"))
        monkeypatch.setattr("torch.cuda.get_device_name", lambda: "an interpreter")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draft_heads.with_mtp(tmp_path_factory.mktemp("mimo"))


def generate(folder: Path, **settings: Any) -> tuple[list[list[int]], dict[str, Any]]:
    """The answers, and what the drafts did."""
    device = "cpu" if INTERPRETED else "cuda"
    given = {"device": device, "dtype": "float32", "context": 64, "block_size": 16, "kv_memory": "20MB"}
    with LLM(str(folder), max_sequences=4, lookahead=1, **given, **settings) as llm:
        results = llm.generate(TEXTS, PARAMS, progress=False)
        llm.check_integrity()
        stats = llm.stats()
    return [result.tokens for result in results], stats.get("speculation", {})


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    with LLM(str(folder), device="cpu", context=64, kv_memory="20MB") as llm:
        return [result.tokens for result in llm.generate(TEXTS, PARAMS, progress=False)]


@pytest.mark.parametrize("step_tokens", [64, 11])
def test_recorded_drafts(
    folder: Path, expected: list[list[int]], step_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [text + tokens for text, tokens in zip(TEXTS, expected, strict=True)]
    monkeypatch.setattr(
        cuda_speculation, "PromptLookup", lambda tokens: RecordedDrafts(tokens, answers, Random(1), 0.8)
    )
    found, stats = generate(folder, speculate="lookup", speculate_audit=0.5, step_tokens=step_tokens)
    assert found == expected
    assert 10 < stats["accepted"] < stats["drafted"]
    assert stats["audited"] > 5
    assert stats["mismatches"] == 0


@pytest.mark.parametrize("proposer", ["medusa", "draft"])
def test_more_rows_than_graphs_of_drafts_have(
    folder: Path, expected: list[list[int]], proposer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some get none."""
    for module in (cuda_proposer, cuda_draft_model):
        monkeypatch.setattr(module, "SIZES", (1, 2))
    found, stats = generate(folder, speculate=speculate_setting(proposer, tmp_path / proposer))
    assert found == expected
    assert stats["drafted"] > 10


@pytest.mark.parametrize("proposer", ["eagle3", "medusa", "draft"])
def test_proposers_on_the_device(folder: Path, expected: list[list[int]], proposer: str, tmp_path: Path) -> None:
    found, stats = generate(folder, speculate=speculate_setting(proposer, tmp_path / proposer))
    assert found == expected
    assert stats["drafted"] > 10
