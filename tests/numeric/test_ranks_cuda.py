"""Models split over ranks on a GPU: the kernels at the shapes of shards. The ranks are threads of one process, sums are
in memory; what NCCL does with one rank is in `unit/forward/test_cuda_ranks.py`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from helpers import tiny_models
from helpers.paged_model import PagedModel
from helpers.thread_ranks import ThreadRanks, run_ranks
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.cuda_rank_ops import CudaRankOperations
from penstock.kernels.interface import Activation, Linear
from penstock.kernels.weight import Weight
from penstock.model import Decoder, open_source
from penstock.model.load_dense import load_dense
from penstock.model.weights.place import Shard, vocabulary_parts
from penstock.store.files import ModelFiles
from penstock.store.hf_folder import read

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.2}
PROMPT, OTHER = list(range(2, 102)), list(range(60, 90))
DEVICE = torch.device("cuda")


def load_rank(files: ModelFiles, shard: Shard, dtype: torch.dtype) -> Decoder:
    source = open_source(files.weights, files.format, files.spec.quantization)
    return load_dense(files.spec, source, dtype=dtype, device=DEVICE, context=512, shard=shard)


def rank_logits(files: ModelFiles, world: int, dtype: torch.dtype) -> Tensor:
    """Of PROMPT, in chunks and token by token beside another sequence, on rank 0."""
    models = [load_rank(files, Shard(rank, world), dtype) for rank in range(world)]

    def run(ranks: ThreadRanks) -> Tensor:
        ops = CudaRankOperations(CudaOperations(), ranks, vocabulary_parts(files.spec.vocab_size, world))
        paged = PagedModel(models[ranks.rank], ops=ops, dtype=dtype, device=DEVICE)
        first, second = paged.add(PROMPT), paged.add(OTHER)
        for portions in ({first: 40}, {first: 1, second: 20}, {first: 30, second: 1}, {first: 29, second: 9}):
            paged.step(portions)
        return torch.cat((paged.logits(first), paged.logits(second)))

    return run_ranks(world, run)[0]


@pytest.mark.parametrize("world", [2, 4])  # with 2 KV heads: split, and shared by two ranks each
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("family", tiny_models.FAMILIES)
def test_every_architecture(family: str, dtype: torch.dtype, world: int, tmp_path: Path) -> None:
    folder = tiny_models.make(family, tmp_path)
    with torch.inference_mode():
        expected = tiny_models.oracle(folder)(torch.tensor([PROMPT])).logits[0]
    own = rank_logits(read(folder, folder.name), world, dtype)
    assert (own[: len(PROMPT)].cpu() - expected).abs().max() < TOLERANCE[dtype]


def test_a_vocabulary_that_the_ranks_do_not_divide(tmp_path: Path) -> None:
    files = read(tiny_models.make("qwen2", tmp_path, vocab_size=tiny_models.VOCAB + 1), "tiny")
    whole, split = (rank_logits(files, world, torch.float32) for world in (1, 4))
    assert (whole - split).abs().max() < TOLERANCE[torch.float32]


def test_biases_are_added_once(tmp_path: Path) -> None:
    """Those of the partial sums, too."""
    files = read(tiny_models.make("llama", tmp_path, attention_bias=True, mlp_bias=True), "tiny")
    assert files.spec.output_bias
    whole, split = (rank_logits(files, world, torch.float32) for world in (1, 2))
    assert (whole - split).abs().max() < TOLERANCE[torch.float32]


# Of Llama-3.1-8B: [out, in], what is split (rows or columns), and the activation.
PRODUCTS: dict[str, tuple[int, int, str, Activation | None]] = {
    "qkv": (6144, 4096, "rows", None),
    "output": (4096, 4096, "columns", None),
    "gate_up": (28672, 4096, "rows", "silu"),
    "down": (4096, 14336, "columns", None),
    "head": (128256, 4096, "rows", None),
}


@pytest.mark.parametrize("world", [2, 4, 8])
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_at_shard_shapes(name: str, world: int) -> None:
    """In bfloat16, for as many rows as each kernel takes."""
    outs, width, split, activation = PRODUCTS[name]
    generator = torch.Generator(DEVICE).manual_seed(0)
    weight = torch.randn(outs, width, generator=generator, device=DEVICE, dtype=torch.bfloat16) / width**0.5
    halves = weight.view(2 if activation else 1, -1, width)
    for rows in (1, 2, 16, 33, 64, 100, 128, 300):
        x, onto = (
            torch.randn(rows, size, generator=generator, device=DEVICE, dtype=torch.bfloat16)
            for size in (width, outs // len(halves))
        )
        exact = x.float() @ weight.float().t()
        if activation is not None:
            gate, up = exact.chunk(2, dim=1)
            exact = torch.nn.functional.silu(gate) * up
        exact += onto.float() if split == "columns" else 0.0

        def run(ranks: ThreadRanks, x: Tensor = x, onto: Tensor = onto) -> Tensor:
            torch.cuda.set_device(0)  # of this thread
            ops = CudaRankOperations(CudaOperations(), ranks, vocabulary_parts(outs, world))
            if split == "rows":
                own = halves.chunk(world, dim=1)[ranks.rank].reshape(-1, width).contiguous()
                return ops.linear(x, Linear(Weight.from_dense(own), gate=activation))
            own, own_x = (tensor.chunk(world, dim=1)[ranks.rank].contiguous() for tensor in (weight, x))
            return ops.linear(own_x, Linear(Weight.from_dense(own), reduce=True), onto=onto.clone())

        results = run_ranks(world, run)
        found = torch.cat(results, dim=1) if split == "rows" else results[0]
        error = (found.float() - exact).abs().max().item()
        assert error < 0.012 * exact.abs().max().item() + 0.01, (rows, error)
