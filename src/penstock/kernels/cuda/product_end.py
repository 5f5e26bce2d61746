"""What products of a few rows with 8-bit or coded weights have in common: split-K, and what follows the sums. These are
[outs, rows]: the weight is the left operand."""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.gate import activate

LARGE_OUTS = 128 * 132  # rows of a weight from which on tiles may be large
LONG = 8192  # columns of a weight from which on programs share them
MOST_TILES = 1 << 14  # of a product with split-K


@triton.jit
def hand_in(sums, parts, arrived, OUTS: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr):
    """Split-K: store the sums of this program, and say how many of the others have done so."""
    tile = tl.program_id(0)
    inner = tl.arange(0, OUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    mine = parts + tile * SPLITS * OUTS * ROWS + inner
    tl.store(mine + tl.program_id(1) * OUTS * ROWS, sums)
    tl.debug_barrier()
    return tl.atomic_add(arrived + tile, 1, sem="acq_rel")


@triton.jit
def add_up(parts, arrived, OUTS: tl.constexpr, ROWS: tl.constexpr, SPLITS: tl.constexpr):
    """Split-K: the last program adds up all parts, in their order."""
    tile = tl.program_id(0)
    inner = tl.arange(0, OUTS)[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
    mine = parts + tile * SPLITS * OUTS * ROWS + inner
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    for number in range(SPLITS):
        sums += tl.load(mine + number * OUTS * ROWS, cache_modifier=".cg")
    tl.store(arrived + tile, 0)
    return sums


@triton.jit
def finish(
    sums,
    bias,
    out,
    tile,
    row,
    rows,
    size,
    stride,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
):
    """Bias, gated activation, sum with `out`, and the store. `row` [ROWS]: rows of `out`."""
    outs: tl.constexpr = OUTS // 2 if GATED else OUTS
    if BIAS:
        index = tl.arange(0, OUTS)
        column = tile * outs + index % outs
        added = tl.load(bias + column + index // outs * size, mask=column < size, other=0.0)
        sums += added.to(tl.float32)[:, None]
    if GATED:
        gate, up = tl.split(sums.reshape(2, outs, ROWS).permute(1, 2, 0))
        sums = activate(gate, SILU) * up
    which = tile * outs + tl.arange(0, outs)
    place = out + (row[None, :] * stride + which[:, None])
    real = (row < rows)[None, :] & (which < size)[:, None]
    if ONTO:
        sums += tl.load(place, mask=real, other=0.0).to(tl.float32)
    tl.store(place, sums.to(out.dtype.element_ty), mask=real)


@cache
def split_counters(device: torch.device) -> Tensor:
    """How many of a tile's splits are done: 0 between launches. See `skinny_gemm`."""
    return torch.zeros(MOST_TILES, dtype=torch.int32, device=device)


def split_buffers(out: Tensor, tiles: int, splits: int, tile: int) -> tuple[Tensor, Tensor]:
    """Memory for the parts of `tile` elements each, and counters. Without split-K anything that is there."""
    if splits == 1:
        return out, out
    parts = torch.empty(tiles * splits * tile, dtype=torch.float32, device=out.device)
    return parts, split_counters(out.device)
