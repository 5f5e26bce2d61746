"""Every architecture against transformers: same float32 logits at every position, however the work is cut up."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import tiny_models
from helpers.paged_model import PagedModel, run_alone
from penstock.model import Decoder, open_source
from penstock.model.load_dense import load_dense
from penstock.store.hf_config import spec_from_config

TOLERANCE = 1e-4
CPU = torch.device("cpu")
PROMPTS = [
    random.Random(seed).choices(range(2, tiny_models.VOCAB), k=length) for seed, length in enumerate((100, 1, 37))
]


def load_folder(folder: Path, dtype: torch.dtype = torch.float32, context: int = 512) -> Decoder:
    spec = spec_from_config(json.loads((folder / "config.json").read_text()), None, folder.name)
    source = open_source(sorted(folder.glob("*.safetensors")), "safetensors")
    return load_dense(spec, source, dtype=dtype, device=CPU, context=context)


def expected(oracle: Any, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        logits: Tensor = oracle(torch.tensor([tokens])).logits[0]
    return logits


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < TOLERANCE  # fails on NaN too


Family = tuple[Decoder, Callable[[list[int]], Tensor]]


@pytest.fixture(scope="module", params=tiny_models.FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tiny_models.make(request.param, tmp_path_factory.mktemp("models") / request.param)
    oracle = tiny_models.oracle(folder)
    return load_folder(folder), lambda tokens: expected(oracle, tokens)


@pytest.mark.parametrize("portions", [(), (1,) * 40, (7, 30, 1, 1, 13), (33, 31)], ids=["whole", "ones", "odd", "even"])
def test_alone(family: Family, portions: tuple[int, ...]) -> None:
    model, oracle = family
    assert_close(run_alone(model, PROMPTS[0], portions), oracle(PROMPTS[0]))


@pytest.mark.parametrize("block_size", [1, 16])
def test_block_size(family: Family, block_size: int) -> None:
    model, oracle = family
    assert_close(run_alone(model, PROMPTS[0], (50, 20, 1), block_size=block_size), oracle(PROMPTS[0]))


def test_mixed_batches(family: Family) -> None:
    """Sequences start and go on at different times: chunks beside single tokens, some rows far longer than others.

    All are longer than the original context of the family with longrope, whose frequencies transformers picks per call
    and we pick once for the longest sequence that may come.
    """
    model, oracle = family
    texts = [random.Random(10 + seed).choices(range(2, tiny_models.VOCAB), k=70 + 9 * seed) for seed in range(4)]
    paged = PagedModel(model)
    first, second, third, fourth = (paged.add(text) for text in texts)
    paged.step({first: 69, second: 5})
    paged.step({first: 1, second: 1, third: 40, fourth: 1})
    for _ in range(6):
        paged.step({second: 1, third: 1, fourth: 1})
    paged.step({second: 60, third: 1, fourth: 33})
    for sequence in paged.sequences:
        if rest := len(sequence.tokens) - sequence.computed:
            paged.step({paged.sequences.index(sequence): rest})
    for index, text in enumerate(texts):
        assert_close(paged.logits(index), oracle(text))


def test_many_uneven_rows(family: Family) -> None:
    """So uneven that single tokens are attended to in several groups."""
    model, oracle = family
    texts = [PROMPTS[0][:length] for length in (99, 3, 98, 2, 66, 65, 5, 97, 4, 6, 7, 8, 9, 10, 11, 12)]
    paged = PagedModel(model, num_blocks=1024)
    for text in texts:
        paged.add(text)
    for index, text in enumerate(texts):
        paged.step({index: len(text) - 1})
    paged.step(dict.fromkeys(range(len(texts)), 1))
    for index, text in enumerate(texts):
        if len(text) > 64 or not model.spec.rope.long_factors:
            assert_close(paged.logits(index), oracle(text))


def test_longrope_short_context(tmp_path: Path) -> None:
    folder = tiny_models.make("phi3-longrope", tmp_path / "model")
    text = PROMPTS[0][:60]
    assert_close(run_alone(load_folder(folder, context=64), text), expected(tiny_models.oracle(folder), text))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
        ("llama", {"num_key_value_heads": 1, "head_dim": 40}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
        ("qwen3", {"attention_bias": True}),
        ("gemma3", {"final_logit_softcapping": 5.0, "tie_word_embeddings": False}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_variants(tmp_path: Path, name: str, overrides: dict[str, Any]) -> None:
    folder = tiny_models.make(name, tmp_path / "model", **overrides)
    oracle = tiny_models.oracle(folder)
    assert_close(run_alone(load_folder(folder), PROMPTS[0], (40, 1, 1)), expected(oracle, PROMPTS[0]))


def test_shards_give_the_same(tmp_path: Path) -> None:
    whole, shards = (tiny_models.make("qwen3", tmp_path / size, max_shard_size=size) for size in ("5GB", "100KB"))
    assert len(list(shards.glob("*.safetensors"))) > 1
    assert run_alone(load_folder(shards), PROMPTS[2]).equal(run_alone(load_folder(whole), PROMPTS[2]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_half_precision_is_near(tmp_path: Path, name: str, dtype: torch.dtype) -> None:
    folder = tiny_models.make(name, tmp_path / "model")
    ours = run_alone(load_folder(folder, dtype), PROMPTS[0], (40, 1, 1), dtype=dtype)
    theirs = expected(tiny_models.oracle(folder), PROMPTS[0])
    assert ours.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(ours, theirs).min() > 0.99
