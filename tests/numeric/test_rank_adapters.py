"""Adapters split over ranks, which are threads here: in any mixture the logits of one rank, and of PEFT."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from helpers import tiny_models
from helpers.adapter_engine import named
from helpers.adapter_samples import convert_adapter, peft_model, write_adapter
from helpers.paged_model import CPU, PagedModel
from helpers.thread_ranks import ThreadRanks, run_ranks
from penstock.flow import Adapter
from penstock.forward.torch_adapters import TorchAdapter
from penstock.kernels.rank_ops import RankOperations
from penstock.kernels.reference.low_rank import Parts, adapted_tokens
from penstock.kernels.torch_ops import TorchOperations
from penstock.model import open_source
from penstock.model.load_dense import load_dense
from penstock.model.weights.place import WHOLE, Shard, vocabulary_parts
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read

pytestmark = pytest.mark.filterwarnings("ignore:Model has `tie_word_embeddings=True`")
TOLERANCE = 1e-4
LENGTH = 90
KINDS: tuple[dict[str, Any], ...] = (
    {"rank": 16, "alpha": 32.0, "use_rslora": True, "size": 0.05},
    {"rank": 33, "alpha": 20.0, "layers": (0, 2), "layers_to_transform": [0, 2]},
    {"rank": 1, "modules": ("o_proj", "down_proj")},
    {"rank": 17, "modules": ("lm_head",), "size": 0.3},
    {"rank": 5, "modules": ("embed_tokens",), "size": 0.02},
    {"rank": 2, "modules": ("embed_tokens", "o_proj", "lm_head"), "use_rslora": True},
)
OWNERS = (*range(len(KINDS)), None, 0)
TEXTS = [random.Random(seed).choices(range(2, tiny_models.VOCAB), k=LENGTH) for seed in range(len(OWNERS))]


def mixed_portions() -> list[dict[int, int]]:
    """All texts to their ends: prompts beside decodes, and decodes of all of them."""
    done, steps, draw = [0] * len(TEXTS), [], random.Random(1)
    while any(count < LENGTH for count in done):
        wanted = [one for one in range(len(TEXTS)) if done[one] < LENGTH and draw.random() < 0.8]
        step = {one: min(draw.choice((1, 1, 7, 40)), LENGTH - done[one]) for one in wanted}
        for one, count in step.items():
            done[one] += count
        if step:
            steps.append(step)
    return steps


def logits(files: ModelFiles, adapters: list[Adapter], world: int) -> tuple[list[Tensor], int]:
    """Of each text on rank 0, mixed, and how often ranks added up."""
    source = open_source(files.weights, files.format)
    shards = [Shard(rank, world) for rank in range(world)] if world > 1 else [WHOLE]
    models = [
        load_dense(files.spec, source, dtype=torch.float32, device=CPU, context=512, shard=shard) for shard in shards
    ]

    def run(ranks: ThreadRanks) -> tuple[list[Tensor], int]:
        own, shard = TorchOperations(), shards[ranks.rank]
        parts = [TorchAdapter(one, files.spec, torch.float32, shard).parts for one in adapters]

        def adapt(owners: list[Parts | None]) -> None:
            own.adapters = adapted_tokens(owners)

        ops = own if world == 1 else RankOperations(own, ranks, vocabulary_parts(files.spec.vocab_size, world))
        paged = PagedModel(models[ranks.rank], ops=ops, adapt=adapt)
        for text, owner in zip(TEXTS, OWNERS, strict=True):
            paged.add(text, parts[owner] if owner is not None and parts else None)
        for portions in mixed_portions():
            paged.step(portions)
        return [paged.logits(index) for index in range(len(TEXTS))], ranks.added_up

    return run_ranks(world, run)[0]


def write(files: ModelFiles, folder: Path) -> list[Adapter]:
    return [named(write_adapter(folder / f"a{seed}", files.spec, seed=seed, **kind)) for seed, kind in enumerate(KINDS)]


def differences(found: list[Tensor], expected: list[Tensor]) -> float:
    return max((one - other).abs().max().item() for one, other in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    "family",
    [
        name if name in ("gemma3", "phi3") else pytest.param(name, marks=pytest.mark.parallel)
        for name in tiny_models.FAMILIES
    ],
)
def test_every_architecture(family: str, tmp_path: Path) -> None:
    """With 2 KV heads: split, and shared by two ranks each. Rows of an adapter add no sum over the ranks."""
    folder = tiny_models.make(family, tmp_path / "model")
    files = read(folder, folder.name)
    adapters = write(files, tmp_path)
    alone, _ = logits(files, adapters, 1)
    for world in (2, 4):
        found, sums = logits(files, adapters, world)
        assert differences(found, alone) < TOLERANCE
        assert sums == logits(files, [], world)[1]
    for text in (0, 5):
        oracle = peft_model(folder, Path(adapters[text].path))
        with torch.inference_mode():
            expected = oracle(torch.tensor([TEXTS[text]])).logits[0]
        assert (found[text] - expected).abs().max() < TOLERANCE
        assert (found[text] - found[6]).abs().max() > 0.01  # whose text has no adapter


@pytest.mark.parametrize("world", [2, 4])
def test_gguf_adapters_and_a_vocabulary_that_the_ranks_do_not_divide(world: int, tmp_path: Path) -> None:
    """Rows of q and k are ordered for rotation in pairs there, and A of the embedding is transposed."""
    folder = tiny_models.make("llama", tmp_path / "model", vocab_size=tiny_models.VOCAB + 1)
    files = read(folder, "tiny")
    kinds = ({"modules": ("q_proj", "k_proj", "lm_head")}, {"modules": ("embed_tokens", "down_proj")}, {"rank": 7})
    adapters = [
        named(convert_adapter(write_adapter(tmp_path / f"a{seed}", files.spec, seed=seed, **kind), path, files.spec))
        for seed, kind in enumerate((kinds * 2)[: len(KINDS)])
        for path in (tmp_path / f"a{seed}.gguf",)
    ]
    found, alone = (logits(files, adapters, count)[0] for count in (world, 1))
    assert differences(found, alone) < TOLERANCE
    assert differences(alone[:6], [alone[6]] * 6) > 0.01
