"""Every architecture split over ranks, which are threads here: the logits of transformers at every position."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from helpers import tiny_models
from helpers.paged_model import CPU, PagedModel, run_alone
from helpers.thread_ranks import ThreadRanks, run_ranks
from penstock.kernels.interface import Linear, UnreducedProduct
from penstock.kernels.rank_ops import RankOperations
from penstock.kernels.torch_ops import TorchOperations
from penstock.kernels.weight import Weight
from penstock.model import Decoder, open_source
from penstock.model.load_dense import load_dense
from penstock.model.weights.place import Shard
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read

TOLERANCE = 1e-4
PROMPT, OTHER = list(range(2, 102)), list(range(60, 90))


def load_rank(files: ModelFiles, shard: Shard, dtype: torch.dtype = torch.float32) -> Decoder:
    spec = files.spec
    source = open_source(files.weights, files.format, spec.quantization)
    return load_dense(spec, source, dtype=dtype, device=CPU, context=512, shard=shard)


def rank_logits(files: ModelFiles, world: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Of PROMPT, in chunks and token by token beside another sequence, on rank 0."""
    shards = [Shard(rank, world) for rank in range(world)]
    models = [load_rank(files, shard, dtype) for shard in shards]
    vocabulary = [shard.tokens(files.spec.vocab_size) for shard in shards]

    def run(ranks: ThreadRanks) -> Tensor:
        model = models[ranks.rank]
        ops = RankOperations(TorchOperations(), ranks, vocabulary)
        paged = PagedModel(model, ops=ops, dtype=dtype)
        first, second = paged.add(PROMPT), paged.add(OTHER)
        for portions in ({first: 40}, {first: 1, second: 20}, {first: 30, second: 1}, {first: 29, second: 9}):
            paged.step(portions)
        return torch.cat((paged.logits(first), paged.logits(second)))

    return run_ranks(world, run)


def whole_logits(files: ModelFiles, dtype: torch.dtype = torch.float32) -> Tensor:
    model = load_rank(files, Shard(), dtype)
    return torch.cat([run_alone(model, tokens, dtype=dtype) for tokens in (PROMPT, OTHER)])


@pytest.mark.parametrize("world", [2, 4])  # with 2 KV heads: split, and shared by two ranks each
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_architecture(family: str, world: int, tmp_path: Path) -> None:
    folder = tiny_models.make(family, tmp_path)
    oracle = tiny_models.oracle(folder)
    with torch.inference_mode():
        expected = oracle(torch.tensor([PROMPT])).logits[0]
    files = read(folder, folder.name)
    own, *others = rank_logits(files, world)
    assert (own[: len(PROMPT)] - expected).abs().max() < TOLERANCE
    assert (own - whole_logits(files)).abs().max() < TOLERANCE
    assert {other.shape[1] for other in others} == {tiny_models.VOCAB // world}  # rank 0 alone has all logits


def test_a_vocabulary_that_the_ranks_do_not_divide(tmp_path: Path) -> None:
    files = read(tiny_models.make("qwen2", tmp_path, vocab_size=tiny_models.VOCAB + 1), "tiny")
    own, *others = rank_logits(files, 4)
    assert (own - whole_logits(files)).abs().max() < TOLERANCE
    assert [other.shape[1] for other in others] == [80, 80, 81]


def test_biases_are_added_once(tmp_path: Path) -> None:
    """Those of the partial sums, too."""
    files = read(tiny_models.make("llama", tmp_path, attention_bias=True, mlp_bias=True), "tiny")
    assert files.spec.output_bias
    assert (rank_logits(files, 2)[0] - whole_logits(files)).abs().max() < TOLERANCE


def test_a_16_bit_model(tmp_path: Path) -> None:
    files = read(tiny_models.make("gemma3", tmp_path), "tiny")
    own, exact = rank_logits(files, 2, torch.bfloat16)[0], whole_logits(files)
    alone = whole_logits(files, torch.bfloat16)
    assert (own - exact).abs().mean() < 1.2 * (alone - exact).abs().mean()  # no worse than one rank, rounded as often


def test_operations_without_ranks_reject_partial_sums() -> None:
    product = Linear(Weight.from_dense(torch.eye(4)), reduce=True)
    with pytest.raises(UnreducedProduct):
        TorchOperations().linear(torch.ones(1, 4), product)
