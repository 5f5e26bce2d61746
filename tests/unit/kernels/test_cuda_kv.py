"""Quantized keys and values on the GPU: how they are stored, and attention that reads them, against plain torch."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="triton is not installed")

from helpers.attention_case import STATIC_SCALE, Case, close, nan_pages, numbers
from helpers.paged_model import Row, make_batch
from helpers.triton_device import DEVICE, INTERPRETED, MARKS
from penstock.kernels.cuda import kv_gather, kv_store, prefill_cudnn
from penstock.kernels.cuda.kv_codes import PLAIN
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import BlockMap, Pages, Rotary
from penstock.kernels.reference import kv_codes as reference

pytestmark = MARKS

DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16, torch.float16]
KINDS = [("fp8", "fp8"), ("int8", "int8"), ("int4", "int4"), ("static", "static")]
MIXED = [("int8", "int4"), ("int4", "fp8"), ("plain", "int8"), ("fp8", "plain"), ("static", "int8")]
# Relative error of normally distributed numbers that were stored, of the whole.
LOSS = {"plain": 0.003, "fp8": 0.028, "static": 0.03, "int8": 0.008, "int4": 0.095}


def parts(pages: Pages) -> tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]:
    return (pages.keys, pages.key_scales), (pages.values, pages.value_scales)


@pytest.mark.parametrize("dim", [16, 64, 96, 80, 128, 256])
def test_the_transform_is_its_own_inverse(dim: int) -> None:
    x = numbers(3, 5 * dim)
    y = x.clone()
    kv_store.transform_heads(y, dim)
    close(y.view(3, 5, dim), reference.hadamard(x.view(3, 5, dim)))
    kv_store.transform_heads(y, dim)
    close(y, x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kinds", KINDS + MIXED, ids="-".join)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "rotated"), [(4, 2, 16, 16), (6, 2, 96, 96), (32, 8, 128, 128), (5, 5, 80, 32)]
)
def test_what_is_stored(
    heads: int, kv_heads: int, head_dim: int, rotated: int, kinds: tuple[str, str], dtype: torch.dtype
) -> None:
    tokens, blocks, block_size = 13, 9, 4
    qkv = numbers(tokens, (heads + 2 * kv_heads) * head_dim, dtype=dtype)
    qkv[3, -head_dim:] = 0
    angle = numbers(50, 1, rotated // 2)
    rotary = Rotary(torch.cat((angle.cos(), angle.sin()), dim=1), rotated)
    positions = torch.tensor(random.Random(0).sample(range(50), tokens), device=DEVICE)
    targets = torch.tensor(random.Random(1).sample(range(4, blocks * block_size), tokens), device=DEVICE)
    block_map = BlockMap(torch.zeros(1, 1, dtype=torch.int32, device=DEVICE), targets)
    shape = (blocks, block_size, kv_heads, head_dim)
    mine, theirs, exact = (nan_pages(kind, shape, dtype) for kind in (kinds, kinds, PLAIN))
    batch = replace(make_batch([Row([0] * 2, 0, 2, [[1]])], block_size, DEVICE), positions=positions)
    q = CudaOperations().rotate_store(qkv, mine, block_map, batch, rotary, None)
    turned = CudaOperations().rotate_store(qkv, exact, block_map, batch, rotary, None)
    close(q, reference.hadamard(turned).to(dtype) if kinds[0] == "int4" else turned)
    block, offset = targets // block_size, targets % block_size
    forgetful = ("fp8", "static") if INTERPRETED else ()  # the interpreter rounds to e4m3 without the carry
    for kind, (ours, our_scales), (expected, scales), (wanted, _) in zip(
        kinds, parts(mine), parts(theirs), parts(exact), strict=True
    ):
        x = wanted[block, offset]
        reference.store(x, expected, scales, block_map)
        read = reference.load(ours, our_scales)
        # Rounding decides about few codes only, about more where numbers of 16 bits lie between two of them.
        a, b = read[block, offset], reference.load(expected, scales)[block, offset]
        if kind not in forgetful:
            assert (a - b).norm() < (0.1 if dtype == torch.float32 else 0.4) * LOSS[kind] * b.norm()
            assert (a - x.float()).norm() < LOSS[kind] * x.float().norm()
        written = torch.zeros(blocks, block_size, dtype=torch.bool, device=DEVICE)
        written[block, offset] = True
        assert read[~written].isnan().all()
        slots = targets[torch.randperm(tokens)]
        taken = kv_gather.gather(ours, our_scales, slots, head_dim, dtype)
        stored = reference.load_rotated(ours, our_scales)[slots // block_size, slots % block_size]
        close(taken, stored.to(dtype))


def test_static_scales_saturate() -> None:
    pages = nan_pages(("static", "static"), (2, 4, 1, 16), torch.float32)
    block_map = BlockMap(torch.zeros(1, 1, dtype=torch.int32, device=DEVICE), torch.tensor([5], device=DEVICE))
    batch = make_batch([Row([0] * 2, 0, 2, [[1]])], 4, DEVICE)
    rotary = Rotary(torch.stack((torch.ones(50, 8), torch.zeros(50, 8)), dim=1).to(DEVICE), 16)
    qkv = torch.full((1, 48), 1e5, device=DEVICE)
    CudaOperations().rotate_store(qkv, pages, block_map, batch, rotary, None)
    assert (reference.load(*parts(pages)[0])[1, 1] == 448 * STATIC_SCALE).all()


ROWS = [(0, 1), (30, 1), (700, 1), (129, 1), (0, 9), (0, 200), (130, 6), (64, 65), (300, 2), (900, 64), (45, 33)]
# heads, KV heads, head_dim, block_size, window, softcap
SHAPES = [
    (4, 2, 32, 8, 24, 1.5),
    (6, 2, 96, 4, 0, 0.0),
    (32, 8, 128, 16, 0, 0.0),
    (32, 8, 128, 16, 100, 30.0),
    (3, 3, 64, 32, 24, 0.0),
    (8, 1, 256, 16, 0, 0.0),
    (16, 1, 64, 1, 0, 0.0),
]


def case(
    rows: list[tuple[int, int]],
    shape: tuple[int, int, int, int, int, float],
    kinds: tuple[str, str],
    dtype: torch.dtype = DTYPES[-1],
) -> Case:
    heads, kv_heads, head_dim, block_size, window, _ = shape
    sizes = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "block_size": block_size}
    return Case(rows, **sizes, window=window, dtype=dtype, kinds=kinds)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("kinds", KINDS + MIXED, ids="-".join)
def test_attention(shape: tuple[int, int, int, int, int, float], kinds: tuple[str, str]) -> None:
    case(ROWS, shape, kinds).check(shape[-1])


@pytest.mark.parametrize("dtype", DTYPES[:-1])
@pytest.mark.parametrize("kinds", KINDS + MIXED, ids="-".join)
def test_attention_in_other_types(kinds: tuple[str, str], dtype: torch.dtype) -> None:
    case(ROWS, SHAPES[0], kinds, dtype).check(SHAPES[0][-1])


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape)))
@pytest.mark.parametrize("kinds", KINDS + MIXED, ids="-".join)
@pytest.mark.parametrize("rows", [[(8000, 16)], [(0, 1), (31, 1), (30, 5), (700, 16), (129, 2), (45, 133)]])
def test_attention_of_tokens_as_rows(
    rows: list[tuple[int, int]], kinds: tuple[str, str], shape: tuple[int, int, int, int, int, float]
) -> None:
    case(rows, shape, kinds).check(shape[-1], token_rows=True)


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize(("rows", "longest"), [(1, 9000), (40, 1500), (150, 1500)])
def test_attention_of_many_rows(rows: int, longest: int, kinds: tuple[str, str]) -> None:
    lengths = random.Random(rows).choices(range(min(longest, 1500)), k=rows)
    lengths[rows // 2] = longest - 1
    shape = {"heads": 8, "kv_heads": 4, "head_dim": 128, "block_size": 16}
    Case([(length, 1) for length in lengths], **shape, dtype=torch.bfloat16, kinds=kinds).check()


@pytest.mark.parametrize("kinds", KINDS + MIXED, ids="-".join)
@pytest.mark.parametrize("rows", [[(0, 1024)], [(2048, 1024)], [(0, 1), (40, 1), (0, 1500), (1024, 1100), (3, 1100)]])
def test_attention_of_long_chunks(
    rows: list[tuple[int, int]], kinds: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill_cudnn, "WORTHWHILE", 6 * 1024)  # so that small ones take the long way, too
    Case(rows, heads=6, kv_heads=2, head_dim=64, block_size=16, dtype=torch.bfloat16, kinds=kinds).check()
