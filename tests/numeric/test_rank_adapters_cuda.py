"""Adapters split over ranks on a GPU against one rank in torch's operations on the CPU, which `test_rank_adapters`
compares with PEFT. The ranks are threads of one process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from helpers import tiny_models
from helpers.adapter_engine import named
from helpers.adapter_samples import write_adapter
from helpers.paged_model import CPU, PagedModel
from helpers.thread_ranks import ThreadRanks, run_ranks
from helpers.triton_device import DEVICE, INTERPRETED, MARKS
from penstock.forward import delta_tiles
from penstock.forward.delta_tiles import numbers_of, step_deltas
from penstock.forward.device_adapters import DeviceAdapter, device_adapters, device_copier
from penstock.forward.torch_adapters import TorchAdapter
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.cuda_rank_ops import CudaRankOperations
from penstock.kernels.reference import linear
from penstock.model import open_source
from penstock.model.load_dense import load_dense
from penstock.model.weights.place import Shard, vocabulary_parts
from penstock.store.hf_folder import read

pytestmark = MARKS
LENGTH = 6 if INTERPRETED else 90
KINDS: tuple[dict[str, Any], ...] = (
    {"rank": 18, "size": 0.05},
    {"rank": 2, "modules": ("embed_tokens", "down_proj", "lm_head")},
)
OWNERS = (0, 1, None)
FAMILIES = ("qwen2",) if INTERPRETED else tiny_models.FAMILIES
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.2}


@pytest.mark.parametrize("world", [2] if INTERPRETED else [2, 4])
@pytest.mark.parametrize("many_from", [1, 10_000], ids=["many", "few"])
@pytest.mark.parametrize("dtype", [torch.float32] if INTERPRETED else TOLERANCE)
@pytest.mark.parametrize("family", FAMILIES)
def test_ranks_are_one(
    family: str, dtype: torch.dtype, many_from: int, world: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delta_tiles, "MANY_FROM", many_from)
    monkeypatch.setattr(linear, "prefers_onednn", lambda *_: False)  # the interpreter's model is on the CPU
    folder = tiny_models.make(family, tmp_path / "model", vocab_size=tiny_models.VOCAB + 1)
    files = read(folder, folder.name)
    spec, source = files.spec, open_source(files.weights, files.format)
    adapters = [
        named(write_adapter(tmp_path / f"a{seed}", spec, seed=seed, dtype="float16", **kind))
        for seed, kind in enumerate(KINDS)
    ]
    texts = [random.Random(seed).choices(range(2, tiny_models.VOCAB), k=LENGTH) for seed in range(len(OWNERS))]
    steps = [{0: LENGTH - 2, 1: 3}, {0: 1, 1: 1, 2: 1}, {0: 1, 1: LENGTH - 4, 2: LENGTH - 1}]
    shards = [Shard(rank, world) for rank in range(world)]
    models = [load_dense(spec, source, dtype=dtype, device=DEVICE, context=512, shard=shard) for shard in shards]

    def run(ranks: ThreadRanks) -> list[Tensor]:
        own, shard = CudaOperations(), shards[ranks.rank]
        copier = device_copier(spec, dtype, DEVICE, 64 << 20, shard=shard)
        cache, memory = device_adapters(copier, 64 << 20), copier.memory
        for one in adapters:
            assert cache.start(one)
            assert cache.take_finished(wait_s=60.0) == [(one, None)]
        loaded = [cache.get(one) for one in adapters]

        def adapt(tokens: list[DeviceAdapter | None]) -> None:
            own.deltas = step_deltas(memory, numbers_of(tokens, [1] * len(tokens)))

        ops = CudaRankOperations(own, ranks, vocabulary_parts(spec.vocab_size, world))
        paged = PagedModel(models[ranks.rank], ops=ops, dtype=dtype, device=DEVICE, adapt=adapt)
        for text, owner in zip(texts, OWNERS, strict=True):
            paged.add(text, None if owner is None else loaded[owner])
        for portions in steps:
            paged.step(portions)
        return [paged.logits(index) for index in range(len(texts))]

    found = run_ranks(world, run, in_turns=INTERPRETED)[0]
    exact = load_dense(spec, source, dtype=torch.float32, device=CPU, context=512)
    for text, owner, split in zip(texts, OWNERS, found, strict=True):
        whole = [PagedModel(exact), PagedModel(exact)]
        parts = None if owner is None else TorchAdapter(adapters[owner], spec, torch.float32).parts
        for one, adapter in zip(whole, (parts, None), strict=True):
            one.add(text, adapter)
            one.step({0: LENGTH})
        assert (split.cpu().float() - whole[0].logits(0)).abs().max() < TOLERANCE[dtype]
        assert owner is None or (whole[1].logits(0) - whole[0].logits(0)).abs().max() > 0.01
