"""The native program: every architecture against transformers, and what its results depend on, which is little.

With float32 weights and a float32 cache the logits are those of transformers. And whatever the weights and the cache
are: the logits at a position depend on the tokens up to it alone, to the last bit. Not on the rows that share the step,
not on the chunks a prompt comes in, not on whether its beginning was found in the cache, not on block size or threads.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import tiny_models
from helpers.native_paged_model import NativePagedModel, needs_library
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.program import Pool
from penstock.model import Decoder, PackedForm, load, open_source
from penstock.store import hf_folder

pytestmark = needs_library
PORTIONS = {"whole": (), "ones": (1,) * 40, "odd": (7, 130, 1, 1, 13), "even": (64, 64)}
TEXT = random.Random(0).choices(range(2, tiny_models.VOCAB), k=300)


@cache
def pool(threads: int) -> Pool:
    return Pool(threads)


def load_packed(folder: Path, quantize: Any = None) -> Decoder:
    files = hf_folder.read(folder, folder.name)
    source = open_source(files.weights, files.format)
    return load(files.spec, source, PackedForm(quantize), context=512)


def logits(
    model: Decoder, tokens: list[int], portions: tuple[int, ...] = (), *, threads: int = 2, **options: Any
) -> Array:
    paged = NativePagedModel(model, pool(threads), **options)
    index = paged.add(tokens)
    for count in (*portions, len(tokens) - sum(portions)):
        paged.step({index: count})
    return paged.logits(index)


Family = tuple[Path, Callable[[list[int]], Array]]


@pytest.fixture(scope="module", params=tiny_models.FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    folder = tiny_models.make(request.param, tmp_path_factory.mktemp("models") / request.param)
    oracle = tiny_models.oracle(folder)

    def expected(tokens: list[int]) -> Array:
        with torch.inference_mode():
            found: Array = oracle(torch.tensor([tokens])).logits[0].numpy()
        return found

    return folder, expected


@pytest.mark.parametrize("portions", PORTIONS.values(), ids=PORTIONS)
def test_float32_is_transformers(family: Family, portions: tuple[int, ...]) -> None:
    folder, expected = family
    ours = logits(load_packed(folder), TEXT, portions)
    assert abs(ours - expected(TEXT)).max() < 1e-4


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 4, "tie_word_embeddings": False}),
        ("llama", {"num_key_value_heads": 1, "head_dim": 40}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 24, "max_window_layers": 1}),
        ("gemma3", {"final_logit_softcapping": 5.0, "tie_word_embeddings": False}),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else value,
)
def test_variants(tmp_path: Path, name: str, overrides: dict[str, Any]) -> None:
    folder = tiny_models.make(name, tmp_path / "model", **overrides)
    with torch.inference_mode():
        theirs = tiny_models.oracle(folder)(torch.tensor([TEXT])).logits[0].numpy()
    assert abs(logits(load_packed(folder), TEXT, (140, 1, 1)) - theirs).max() < 1e-4


@pytest.mark.parametrize("dtype", ["float16", "int8", "int4"])
def test_a_smaller_cache_is_near(family: Family, dtype: str) -> None:
    folder, expected = family
    theirs = expected(TEXT)
    ours = logits(load_packed(folder), TEXT, block_size=16, dtype=dtype)
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert error < {"float16": 2e-3, "int8": 5e-2, "int4": 0.5}[dtype]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "int4", "int4,int8"])
@pytest.mark.parametrize("quantize", [None, "int8", "int4"])
def test_a_position_depends_on_the_tokens_before_it_alone(family: Family, quantize: Any, dtype: str) -> None:
    model = load_packed(family[0], quantize)
    alone = logits(model, TEXT, block_size=16, dtype=dtype)
    for portions in list(PORTIONS.values())[1:]:
        assert np.array_equal(logits(model, TEXT, portions, block_size=16, dtype=dtype), alone)
    assert np.array_equal(logits(model, TEXT, (33,), block_size=4, dtype=dtype), alone)
    assert np.array_equal(logits(model, TEXT, (33,), block_size=16, dtype=dtype, threads=1), alone)
    assert np.array_equal(logits(model, TEXT[:170], block_size=16, dtype=dtype), alone[:170])

    paged = NativePagedModel(model, pool(2), block_size=16, dtype=dtype)
    others = [paged.add(random.Random(seed).choices(range(2, 320), k=120)) for seed in range(1, 6)]
    index = paged.add(TEXT)
    paged.step({others[0]: 50, index: 90})
    paged.step({others[0]: 1, others[1]: 70, index: 1, others[2]: 3})
    for _ in range(20):
        paged.step({others[0]: 1, others[1]: 1, index: 1, others[2]: 1})
    paged.step({others[3]: 120, index: 300 - 90 - 1 - 20, others[4]: 1})
    assert np.array_equal(paged.logits(index), alone)


@pytest.mark.parametrize("dtype", ["float16", "int4"])
def test_a_prefix_found_in_the_cache_changes_nothing(family: Family, dtype: str) -> None:
    """A second sequence starts behind the blocks that the first has filled."""
    model = load_packed(family[0], "int8")
    paged = NativePagedModel(model, pool(2), block_size=16, dtype=dtype)
    first = paged.add(TEXT)
    paged.step({first: 200})
    second = paged.add(TEXT)
    paged.sequences[second].computed = 192
    paged.sequences[second].blocks = [list(blocks[:12]) for blocks in paged.sequences[first].blocks]
    paged.step({first: 100, second: 108})
    assert np.array_equal(paged.logits(second), paged.logits(first)[192:])
