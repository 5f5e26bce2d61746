"""Batch-invariant GEMM: each result is one sum over the whole width, in its order, whatever the number of rows.

Tensor cores add 16 products at a time to a float32 sum, and give the same bits for all shapes of tiles, with either
factor on the left, by either of their instructions (`tests/unit/kernels/test_invariant_gemm.py` checks it). So tiles
may be chosen by the number of rows, and split-K may not: a sum of parts is another one. A GEMV on CUDA cores is out,
too, and so is cuBLAS, which splits some products.

Tiles are loaded by the tensor memory accelerator (TMA) where the width is a multiple of 16 bytes, else by addresses.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from penstock.kernels.cuda.attention_tiles import dot_precision
from penstock.kernels.cuda.gate import activate, gate
from penstock.kernels.cuda.invariant_softmax import EXACT
from penstock.kernels.cuda.launch import Launcher, let_next_begin, overlaps, power_of_2, wait
from penstock.kernels.interface import Activation

PROGRAMS = 132  # that take tile after tile: one for each multiprocessor of an H200
AT_ONCE = 8  # tiles of rows that programs go through together
MOST_GATED = 128  # rows up to which gated products are computed in one launch


class Tiling(NamedTuple):
    """How the product is divided among programs."""

    weight_left: bool  # it is the left factor, of which tensor cores take 64 rows; by addresses it always is
    rows: int  # of x that a program takes at a time
    outs: int  # rows of the weight, both of a gated pair
    step: int  # elements of their width at a time
    warps: int
    stages: int  # steps in flight (software pipelining)


# Tiles for many rows, with their measured speeds relative to the first, where there is one for each multiprocessor.
SPEEDS = {
    Tiling(False, 128, 256, 64, 8, 3): 1.0,
    Tiling(False, 128, 128, 64, 4, 4): 0.93,
    Tiling(True, 128, 64, 64, 4, 6): 0.72,
    Tiling(True, 64, 64, 128, 4, 5): 0.55,
}


@triton.jit
def _place(tile, rows, size, ROWS: tl.constexpr, OUTS: tl.constexpr, AT_ONCE: tl.constexpr):
    """First row and first output of a tile: programs that run at the same time share rows of x and of the weight."""
    down, across = tl.cdiv(rows, ROWS), tl.cdiv(size, OUTS)
    first = tile // (AT_ONCE * across) * AT_ONCE
    height = tl.minimum(down - first, AT_ONCE)
    inner = tile % (AT_ONCE * across)
    return (first + inner % height) * ROWS, inner // height * OUTS


@triton.jit(do_not_specialize=["rows", "size"])
def _tma_kernel(
    x,
    weight,
    onto,
    bias,
    out,
    rows,
    size,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    LEFT: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """Each program takes tile after tile. x, weight and onto, which is `out`, are descriptors."""
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    tiles = tl.cdiv(rows, ROWS) * tl.cdiv(size, OUTS)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        row, which = _place(tile, rows, size, ROWS, OUTS, AT_ONCE)
        sums = tl.zeros([OUTS, ROWS] if LEFT else [ROWS, OUTS], tl.float32)
        for at in range(0, WIDTH, STEP):
            v = x.load([row, at])
            w = weight.load([which, at])
            sums = tl.dot(w, v.T, sums) if LEFT else tl.dot(v, w.T, sums)
        row_in_tile, every_out = tl.arange(0, ROWS), which + tl.arange(0, OUTS)
        if LEFT:
            row_in_tile, every_out = row_in_tile[None, :], every_out[:, None]
        else:
            row_in_tile, every_out = row_in_tile[:, None], every_out[None, :]
        real = (row + row_in_tile < rows) & (every_out < size)
        if BIAS:
            sums += tl.load(bias + every_out, mask=every_out < size, other=0.0).to(tl.float32)
        if ONTO:  # by addresses it would take too many registers
            residual = onto.load([row, which])
            sums += residual.T.to(tl.float32) if LEFT else residual.to(tl.float32)
        place = out + row.to(tl.int64) * size + (row_in_tile * size + every_out)
        tl.store(place, sums.to(out.dtype.element_ty), mask=real)


@triton.jit
def _load(matrix, line, at, there, WIDTH: tl.constexpr, STEP: tl.constexpr):
    if WIDTH % STEP == 0:
        tile = tl.load(matrix + line * WIDTH + at, mask=there, other=0.0)
    else:
        tile = tl.load(matrix + line * WIDTH + at, mask=there & (at < WIDTH), other=0.0)
    return tile


@triton.jit(do_not_specialize=["rows", "size"])
def _kernel(
    x,
    weight,
    bias,
    out,
    rows,
    size,
    WIDTH: tl.constexpr,
    BIAS: tl.constexpr,
    ONTO: tl.constexpr,
    GATED: tl.constexpr,
    SILU: tl.constexpr,
    ROWS: tl.constexpr,
    OUTS: tl.constexpr,
    STEP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    PRECISION: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One tile for each program, the weight on the left. Of a gated pair it takes half as many rows each."""
    let_next_begin(OVERLAP)
    outs: tl.constexpr = OUTS // 2 if GATED else OUTS
    row, first_out = _place(tl.program_id(0), rows, size, ROWS, outs, AT_ONCE)
    every_row = row + tl.arange(0, ROWS)
    index = tl.arange(0, OUTS)
    which = first_out + index % outs
    part = index // outs * size  # of the gated pair
    x_line, w_line = every_row.to(tl.int64)[:, None], (which + part).to(tl.int64)[:, None]
    has_row, has_out = (every_row < rows)[:, None], (which < size)[:, None]
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    wait(OVERLAP)
    for first in range(0, WIDTH, STEP):
        at = first + tl.arange(0, STEP)[None, :]
        w = _load(weight, w_line, at, has_out, WIDTH, STEP)
        v = _load(x, x_line, at, has_row, WIDTH, STEP)
        sums = tl.dot(w, v.T, sums, input_precision=PRECISION)
    if BIAS:
        sums += tl.load(bias + which + part, mask=which < size, other=0.0).to(tl.float32)[:, None]
    if GATED:  # rounded first, as by a product and a gate one after the other
        pairs = sums.to(out.dtype.element_ty).to(tl.float32).reshape(2, outs, ROWS)
        gates, ups = tl.split(pairs.permute(1, 2, 0))
        sums = activate(gates, SILU) * ups
        which = first_out + tl.arange(0, outs)
    place = every_row.to(tl.int64)[None, :] * size + which[:, None]
    real = (every_row < rows)[None, :] & (which < size)[:, None]
    if ONTO:
        sums += tl.load(out + place, mask=real, other=0.0).to(tl.float32)
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=real)


_launch_tma, _launch = Launcher(_tma_kernel), Launcher(_kernel)


def invariant_gemm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    onto: Tensor | None = None,
    activation: Activation | None = None,
    out: Tensor | None = None,
    tiling: Tiling | None = None,
) -> Tensor:
    """[rows, in] x [out, in], see `interface.Linear`; with an activation the weight is that of a gated pair, and there
    is no `onto`. `out` may be float32. `tiling`: for tests; it changes no bit."""
    rows, size_of_weight = x.shape[0], weight.shape[0]
    size = size_of_weight // (1 if activation is None else 2)
    assert activation is None or onto is None
    if activation is not None and rows > MOST_GATED and tiling is None:
        return gate(invariant_gemm(x, weight, bias), activation, exact=True)
    if onto is not None:
        out = onto
    elif out is None:
        out = torch.empty(rows, size, dtype=x.dtype, device=x.device)
    by_tma = activation is None and _has_tma() and all(map(_is_described, (x, weight, x if onto is None else onto)))
    if tiling is None:
        tiling = _tiling(rows, size_of_weight, (x.element_size(), out.element_size()), by_tma=by_tma)
    (_tma if by_tma else _by_addresses)(x, weight, bias, onto, out, activation, tiling)
    return out


def _tma(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    onto: Tensor | None,
    out: Tensor,
    activation: Activation | None,
    tiling: Tiling,
) -> None:
    assert activation is None
    (rows, width), size = x.shape, weight.shape[0]
    left, height, outs, step, warps, stages = tiling
    described = TensorDescriptor.from_tensor(x, [height, step])
    weights = TensorDescriptor.from_tensor(weight, [outs, step])
    residual = described if onto is None else TensorDescriptor.from_tensor(onto, [height, outs])
    _launch_tma(
        (min(-(-rows // height) * -(-size // outs), PROGRAMS), 1, 1),
        (x.dtype, out.dtype),
        (described, weights, residual, x if bias is None else bias, out, rows, size),
        (width, bias is not None, onto is not None, left, height, outs, step, AT_ONCE),
        num_warps=warps,
        num_stages=stages,
        **EXACT,
    )


def _by_addresses(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    onto: Tensor | None,
    out: Tensor,
    activation: Activation | None,
    tiling: Tiling,
) -> None:
    (rows, width), size = x.shape, out.shape[1]
    _, height, outs, step, warps, stages = tiling
    gated = activation is not None
    fused = (bias is not None, onto is not None, gated, activation == "silu")
    tiles = -(-rows // height) * -(-size // (outs // 2 if gated else outs))
    _launch(
        (tiles, 1, 1),
        (x.dtype, out.dtype),
        (x, weight, x if bias is None else bias, out, rows, size),
        (width, *fused, height, outs, step, AT_ONCE, dot_precision(x)),
        num_warps=warps,
        num_stages=stages,
        **EXACT,
    )


def _tiling(rows: int, outs: int, num_bytes: tuple[int, int], *, by_tma: bool) -> Tiling:
    """The fastest for the 8B shape. `outs`: rows of the weight; `num_bytes` of a factor and of a result. Numbers of
    rows that round up to the same power of 2 have the same one, so that a start finds all that it has to compile."""
    padded = max(16, min(power_of_2(rows), 1024))
    if num_bytes[0] == 4:
        return Tiling(True, min(padded, 64), 32, 32, 4, 2)
    if not by_tma:
        if padded <= 32:
            return Tiling(True, padded, 64, 128, 4, 4)
        return Tiling(True, 64, 128, 128, 8, 4) if padded == 64 else Tiling(True, 128, 128, 64, 4, 3)
    if padded <= 64:
        return Tiling(True, padded, 64, 256, 4, 4) if padded == 16 else Tiling(True, padded, 64, 128, 4, 6)

    def cost(tiling: Tiling) -> float:
        tiles = -(-padded // tiling.rows) * -(-outs // tiling.outs)
        return -(-tiles // PROGRAMS) * tiling.rows * tiling.outs / SPEEDS[tiling]

    fitting = [tiling for tiling in SPEEDS if num_bytes[1] == 2 or tiling.outs <= 128]  # in shared memory
    return min(fitting, key=cost)


@cache
def _has_tma() -> bool:
    return overlaps()  # both since compute capability 9.0


def _is_described(matrix: Tensor) -> bool:
    """Whether TMA can read it."""
    return matrix.element_size() == 2 and matrix.shape[1] % 8 == 0 and matrix.data_ptr() % 16 == 0
