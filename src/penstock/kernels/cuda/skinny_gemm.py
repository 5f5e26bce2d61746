"""A few rows times a matrix, with what surrounds the product in a transformer: the norm before it, the gated activation
or the residual sum after it.

Such a product is bound by reading the weight, for 1 row as for 64, and what counts is that reading never pauses: each
launch comes up while the one before still runs, and what would be small kernels of their own is fused into it.

Measured on an H200, µs of one of many in a row, for the 8B shape (and of cuBLAS, without the gate). One row:
qkv 16.0 (15.1), output 10.8 (12.7), gate and up 56.8 (57.2), down 30.8 (31.8). 32 rows: 16.3 (16.3), 11.9 (13.2), 58.9
(63.8), 32.6 (33.7). 64 rows: 17.8 (16.3), 13.0 (11.7), 61.4 (63.6), 34.8 (35.9). 128 rows: gate and up 65.9 (67.8).
Reading the weights takes 12.0, 8.0, 56.2 and 28.1.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.gate import active
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Activation, Norm

SMALL = 1 << 23  # elements of a weight up to which one row is better served by `_one` than by `_few`
WIDEST = 16384  # elements of a row of the weight that `_one` takes at a time
STEP = 128  # what the width must be a multiple of for `_few`
PROGRAMS = 132  # of `_few` to aim for by splitting the width: one for each multiprocessor of an H200
MOST_SPLITS = 4
LARGE = 128 * PROGRAMS  # rows of a weight from which on tiles may be large
MOST_ROWS, MOST_OF_LARGE = 64, 128  # rows of x beyond which cuBLAS is ahead over a layer: in general, of large weights


class Tiling(NamedTuple):
    """How `_few` divides its work."""

    outs: int  # rows of the weight that a program takes
    step: int  # how many of their elements at a time
    splits: int  # programs that share the width
    warps: int
    stages: int  # steps that are being read


class Does(NamedTuple):
    """What a product does beside the product."""

    bias: bool
    norm: bool
    onto: bool
    gate: bool
    silu: bool


@triton.jit
def _piece(line, at, there, WIDTH: tl.constexpr):
    return tl.load(line + at, mask=there & (at < WIDTH), other=0.0, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["size"])
def _one(
    x,
    weight,
    bias,
    gains,
    out,
    size,
    eps,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    ONTO: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One row of x. The first pieces of the weight are ordered before x is there. A norm's factor is known when all of
    x has been seen, which is when the product is done."""
    which = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    there = (which < size)[:, None]
    line = weight + which.to(tl.int64)[:, None] * WIDTH
    up_line = line + size.to(tl.int64) * WIDTH
    at = tl.arange(0, STEP)[None, :]
    w = _piece(line, at, there, WIDTH)
    if GATED:
        u = _piece(up_line, at, there, WIDTH)
    wait(OVERLAP)
    v = tl.load(x + at, mask=at < WIDTH, other=0.0).to(tl.float32)
    squares = v * v
    if NORM:
        v *= tl.load(gains + at, mask=at < WIDTH, other=0.0)
    sums = w.to(tl.float32) * v
    if GATED:
        ups = u.to(tl.float32) * v
    for first in range(STEP, WIDTH, STEP):
        at = first + tl.arange(0, STEP)[None, :]
        w = _piece(line, at, there, WIDTH)
        if GATED:
            u = _piece(up_line, at, there, WIDTH)
        v = tl.load(x + at, mask=at < WIDTH, other=0.0).to(tl.float32)
        squares += v * v
        if NORM:
            v *= tl.load(gains + at, mask=at < WIDTH, other=0.0)
        sums += w.to(tl.float32) * v
        if GATED:
            ups += u.to(tl.float32) * v
    let_next_begin(OVERLAP)  # not sooner: programs that wait would take the place of those that have yet to read
    result = tl.sum(sums, axis=1)
    factor = 1.0
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, axis=1) / WIDTH + eps)
        result *= factor
    if BIAS:
        result += tl.load(bias + which, mask=which < size, other=0.0).to(tl.float32)
    if GATED:
        up = tl.sum(ups, axis=1) * factor
        if BIAS:
            up += tl.load(bias + size + which, mask=which < size, other=0.0).to(tl.float32)
        result = active(result, SILU) * up
    if ONTO:
        result += tl.load(out + which, mask=which < size, other=0.0).to(tl.float32)
    tl.store(out + which, result.to(out.dtype.element_ty), mask=which < size)


@triton.jit(do_not_specialize=["rows", "size"])
def _few(
    x,
    weight,
    bias,
    out,
    parts,
    arrived,
    rows,
    size,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    NORM: tl.constexpr,
    ONTO: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
    SPLITS: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Up to ROWS rows of x, on tensor cores. The weight is the left factor: their 64 rows are better filled by it. Of a
    gated pair a program takes half as many rows each."""
    tl.static_assert(not NORM)  # x would go through registers, which takes longer than a launch
    let_next_begin(OVERLAP)
    tile = tl.program_id(0)
    split = tl.program_id(1)
    share: tl.constexpr = WIDTH // SPLITS
    outs: tl.constexpr = OUTS // 2 if GATED else OUTS
    index = tl.arange(0, OUTS)
    which = tile * outs + index % outs
    there = (which < size)[:, None]
    line = weight + (which + index // outs * size).to(tl.int64)[:, None] * WIDTH + split * share
    row = tl.arange(0, ROWS)
    source = x + row[:, None] * WIDTH + split * share
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    wait(OVERLAP)
    for first in range(0, share, STEP):
        at = first + tl.arange(0, STEP)[None, :]
        w = tl.load(line + at, mask=there, other=0.0)
        v = tl.load(source + at, mask=(row < rows)[:, None], other=0.0)
        sums = tl.dot(w, v.T, sums)

    if SPLITS > 1:  # whoever is last adds up all parts, in their order
        inner = index[:, None] * ROWS + row[None, :]
        mine = parts + tile * SPLITS * OUTS * ROWS + inner
        tl.store(mine + split * OUTS * ROWS, sums)
        tl.debug_barrier()
        before = tl.atomic_add(arrived + tile, 1, sem="acq_rel")
        if before < SPLITS - 1:
            return
        sums = tl.zeros([OUTS, ROWS], tl.float32)
        for number in range(SPLITS):
            sums += tl.load(mine + number * OUTS * ROWS, cache_modifier=".cg")
        tl.store(arrived + tile, 0)
    if BIAS:
        sums += tl.load(bias + which + index // outs * size, mask=which < size, other=0.0).to(tl.float32)[:, None]
    if GATED:
        gate, up = tl.split(sums.reshape(2, outs, ROWS).permute(1, 2, 0))
        sums = active(gate, SILU) * up
        which = tile * outs + tl.arange(0, outs)
    place = row[None, :] * size + which[:, None]
    real = (row < rows)[None, :] & (which < size)[:, None]
    if ONTO:
        sums += tl.load(out + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=real)


_launch_one, _launch_few = Launcher(_one), Launcher(_few)


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether `skinny_gemm` takes it, and a layer is faster for it than with cuBLAS."""
    rows, width = x.shape
    most = MOST_OF_LARGE if weight.shape[0] >= LARGE else MOST_ROWS
    return x.element_size() == 2 and rows <= most and width % (16 if rows == 1 else STEP) == 0


def takes_norm(x: Tensor, weight: Tensor) -> bool:
    """Whether the norm of x can be left to the product."""
    return suits(x, weight) and _is_one(x, weight)


def _is_one(x: Tensor, weight: Tensor) -> bool:
    """Whether it is `_one` that computes it."""
    return x.shape[0] == 1 and (weight.numel() <= SMALL or x.shape[1] % STEP != 0)


def skinny_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Norm | None = None,
    onto: Tensor | None = None,
    activation: Activation | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """[rows, in] × [out, in], see `interface.Linear`; with an activation the weight is that of a
    gated pair. A norm is made on the way only where `takes_norm` says so. What is given as `out` may be float32."""
    rows, size = x.shape[0], weight.shape[0] // (1 if activation is None else 2)
    if onto is not None:
        out = onto
    elif out is None:
        out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    does = Does(bias is not None, norm is not None, onto is not None, activation is not None, activation == "silu")
    if _is_one(x, weight):
        _product_of_one(x, weight, bias, norm, out, does)
    else:
        assert norm is None
        _product_of_few(x, weight, bias, out, does)
    return out


def _product_of_one(x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None, out: Tensor, does: Does) -> None:
    size, width = out.shape[1], weight.shape[1]
    gains, eps = norm or (x, 0.0)
    outs, warps = (4, 4) if width <= 4096 and not does.gate else (2, 8)
    step = min(power_of_2(width), WIDEST)
    _launch_one(
        (-(-size // outs), 1, 1),
        (x.dtype, out.dtype),
        (x, weight, x if bias is None else bias, gains, out, size, eps),
        (width, *does, outs, step),
        num_warps=warps,
    )


def _product_of_few(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, does: Does) -> None:
    (size_of_weight, width), (rows, size) = weight.shape, out.shape
    padded = max(16, power_of_2(rows))
    outs, step, splits, warps, stages = _tiling(padded, size_of_weight, width)
    tiles = -(-size_of_weight // outs)
    parts, arrived = out, out
    if splits > 1:
        parts = torch.empty(tiles * splits * outs * padded, dtype=torch.float32, device=x.device)
        arrived = _counters(x.device)
    _launch_few(
        (tiles, splits, 1),
        (x.dtype, out.dtype),
        (x, weight, x if bias is None else bias, out, parts, arrived, rows, size),
        (width, *does, padded, outs, step, splits),
        num_warps=warps,
        num_stages=stages,
    )


def _tiling(rows: int, outs: int, width: int) -> Tiling:
    """What was fastest of all that fits into a multiprocessor, for the 8B and the 0.6B shape."""
    if rows > 32 and outs >= LARGE:
        return Tiling(128, 128, 1, 8, 4) if rows <= 64 else Tiling(128, 64, 1, 4, 3)
    tiles, splits = -(-outs // 64), 1
    while tiles * splits * 2 <= PROGRAMS and splits < MOST_SPLITS and width % (splits * 2 * STEP) == 0:
        splits *= 2
    wide = width % (splits * 2 * STEP) == 0
    if rows > 32:
        return Tiling(64, STEP, splits, 8 if splits > 1 else 4, 4)
    if tiles * splits * 2 <= PROGRAMS and wide:
        return Tiling(32, 2 * STEP, splits, 4, 6)
    if rows > 16 and splits > 1 and outs <= width and wide:
        return Tiling(64, 2 * STEP, splits, 4, 3)
    # Memory for one program per multiprocessor, or for two.
    return Tiling(64, STEP, splits, 4, 6 if tiles * splits <= PROGRAMS else 4)


@cache
def _counters(device: torch.device) -> Tensor:
    """How many of a tile's splits have arrived: 0 whenever nothing runs. Launches share them, since one ends before the
    next one writes. Made at the first product, which is never captured: memory of a graph would not keep them."""
    return torch.zeros(PROGRAMS, dtype=torch.int32, device=device)
