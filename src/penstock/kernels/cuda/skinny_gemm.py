"""Skinny GEMM: a few rows times a weight, fused with what surrounds the product in a transformer: the norm before it,
and bias, gated activation or residual sum after it (`interface.Linear`). One row is a GEMV; several use tensor cores,
with split-K where there are few tiles.

Such a product is bound by reading the weight, for 1 row as for 64, and reading must never pause: each launch comes up
while the one before still runs, and what would be small kernels of their own is fused into it.

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

from penstock.kernels.cuda.gate import activate
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Activation, Norm

SMALL_WEIGHT = 1 << 23  # elements of a weight up to which the GEMV is faster for one row
WIDEST = 16384  # elements of a row of the weight that the GEMV takes at a time
STEP = 128  # what the width must be a multiple of for the GEMM
PROGRAMS = 132  # of the GEMM to aim for by split-K: one for each multiprocessor of an H200
MAX_SPLITS = 4
LARGE_OUTS = 128 * PROGRAMS  # rows of a weight from which on tiles may be large
MAX_ROWS, MAX_ROWS_LARGE = 64, 128  # rows of x beyond which cuBLAS is ahead over a layer: in general, of large weights


class Tiling(NamedTuple):
    """How the GEMM is divided among programs."""

    outs: int  # rows of the weight that a program takes
    step: int  # how many of their elements at a time
    splits: int  # programs that share the width (split-K)
    warps: int
    stages: int  # steps in flight (software pipelining)


class Fused(NamedTuple):
    """What is fused into a product."""

    bias: bool
    norm: bool
    residual: bool
    gate: bool
    silu: bool


@triton.jit
def _load_weight(line, at, there, WIDTH: tl.constexpr):
    return tl.load(line + at, mask=there & (at < WIDTH), other=0.0, eviction_policy="evict_first")


@triton.jit(do_not_specialize=["size"])
def _gemv_kernel(
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
    """GEMV: one row of x. Loads of the weight are issued before x is there. The norm's factor is known once all of x
    has been read, so it multiplies the finished product."""
    which = tl.program_id(0) * OUTS + tl.arange(0, OUTS)
    there = (which < size)[:, None]
    line = weight + which.to(tl.int64)[:, None] * WIDTH
    up_line = line + size.to(tl.int64) * WIDTH
    at = tl.arange(0, STEP)[None, :]
    w = _load_weight(line, at, there, WIDTH)
    if GATED:
        u = _load_weight(up_line, at, there, WIDTH)
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
        w = _load_weight(line, at, there, WIDTH)
        if GATED:
            u = _load_weight(up_line, at, there, WIDTH)
        v = tl.load(x + at, mask=at < WIDTH, other=0.0).to(tl.float32)
        squares += v * v
        if NORM:
            v *= tl.load(gains + at, mask=at < WIDTH, other=0.0)
        sums += w.to(tl.float32) * v
        if GATED:
            ups += u.to(tl.float32) * v
    let_next_begin(OVERLAP)  # not sooner: waiting programs would take the place of those that have yet to read
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
        result = activate(result, SILU) * up
    if ONTO:
        result += tl.load(out + which, mask=which < size, other=0.0).to(tl.float32)
    tl.store(out + which, result.to(out.dtype.element_ty), mask=which < size)


@triton.jit(do_not_specialize=["rows", "size"])
def _gemm_kernel(
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
    """GEMM of up to ROWS rows of x on tensor cores. The weight is the left operand, since it fills their 64 rows. Of a
    gated pair a program takes half as many rows each."""
    tl.static_assert(not NORM)  # x would go through registers, which takes longer than a kernel for the norm
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

    if SPLITS > 1:  # split-K: the last program adds up all parts, in their order
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
        sums = activate(gate, SILU) * up
        which = tile * outs + tl.arange(0, outs)
    place = row[None, :] * size + which[:, None]
    real = (row < rows)[None, :] & (which < size)[:, None]
    if ONTO:
        sums += tl.load(out + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=real)


_launch_gemv, _launch_gemm = Launcher(_gemv_kernel), Launcher(_gemm_kernel)


def suits(x: Tensor, weight: Tensor) -> bool:
    """Whether `skinny_gemm` computes it, faster than cuBLAS over a layer."""
    rows, width = x.shape
    most = MAX_ROWS_LARGE if weight.shape[0] >= LARGE_OUTS else MAX_ROWS
    return x.element_size() == 2 and rows <= most and width % (16 if rows == 1 else STEP) == 0


def fuses_norm(x: Tensor, weight: Tensor) -> bool:
    """Whether the norm of x can be fused into the product."""
    return suits(x, weight) and _is_gemv(x, weight)


def _is_gemv(x: Tensor, weight: Tensor) -> bool:
    return x.shape[0] == 1 and (weight.numel() <= SMALL_WEIGHT or x.shape[1] % STEP != 0)


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
    gated pair. A norm only where `fuses_norm`. `out` may be float32."""
    rows, size = x.shape[0], weight.shape[0] // (1 if activation is None else 2)
    if onto is not None:
        out = onto
    elif out is None:
        out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    fused = Fused(bias is not None, norm is not None, onto is not None, activation is not None, activation == "silu")
    if _is_gemv(x, weight):
        _gemv(x, weight, bias, norm, out, fused)
    else:
        assert norm is None
        _gemm(x, weight, bias, out, fused)
    return out


def _gemv(x: Tensor, weight: Tensor, bias: Tensor | None, norm: Norm | None, out: Tensor, fused: Fused) -> None:
    size, width = out.shape[1], weight.shape[1]
    gains, eps = norm or (x, 0.0)
    outs, warps = (4, 4) if width <= 4096 and not fused.gate else (2, 8)
    step = min(power_of_2(width), WIDEST)
    _launch_gemv(
        (-(-size // outs), 1, 1),
        (x.dtype, out.dtype),
        (x, weight, x if bias is None else bias, gains, out, size, eps),
        (width, *fused, outs, step),
        num_warps=warps,
    )


def _gemm(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, fused: Fused) -> None:
    (size_of_weight, width), (rows, size) = weight.shape, out.shape
    padded = max(16, power_of_2(rows))
    outs, step, splits, warps, stages = _tiling(padded, size_of_weight, width)
    tiles = -(-size_of_weight // outs)
    parts, arrived = out, out
    if splits > 1:
        parts = torch.empty(tiles * splits * outs * padded, dtype=torch.float32, device=x.device)
        arrived = _counters(x.device)
    _launch_gemm(
        (tiles, splits, 1),
        (x.dtype, out.dtype),
        (x, weight, x if bias is None else bias, out, parts, arrived, rows, size),
        (width, *fused, padded, outs, step, splits),
        num_warps=warps,
        num_stages=stages,
    )


def _tiling(rows: int, outs: int, width: int) -> Tiling:
    """The fastest of all that fit into a multiprocessor, for the 8B and the 0.6B shape."""
    if rows > 32 and outs >= LARGE_OUTS:
        return Tiling(128, 128, 1, 8, 4) if rows <= 64 else Tiling(128, 64, 1, 4, 3)
    tiles, splits = -(-outs // 64), 1
    while tiles * splits * 2 <= PROGRAMS and splits < MAX_SPLITS and width % (splits * 2 * STEP) == 0:
        splits *= 2
    wide = width % (splits * 2 * STEP) == 0
    if rows > 32:
        return Tiling(64, STEP, splits, 8 if splits > 1 else 4, 4)
    if tiles * splits * 2 <= PROGRAMS and wide:
        return Tiling(32, 2 * STEP, splits, 4, 6)
    if rows > 16 and splits > 1 and outs <= width and wide:
        return Tiling(64, 2 * STEP, splits, 4, 3)
    # Shared memory for one program per multiprocessor, or for two.
    return Tiling(64, STEP, splits, 4, 6 if tiles * splits <= PROGRAMS else 4)


@cache
def _counters(device: torch.device) -> Tensor:
    """How many of a tile's splits are done: 0 between launches. Launches share them, since one ends before the next one
    writes. Allocated at the first product, which is never captured in a graph, whose memory would not be kept."""
    return torch.zeros(PROGRAMS, dtype=torch.int32, device=device)
