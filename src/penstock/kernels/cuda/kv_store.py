"""Quantize keys and values as they are written to their pages, in the forms that `kv_codes` describes, and the Hadamard
transform that int4 needs: it gives every dimension a share of each outlier, and is its own inverse. Queries get it with
the keys, what attention makes of the values gets it again.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.kv_codes import INT4_SCALE, LARGEST_HALF
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait

HEADS_AT_ONCE = 8


@triton.constexpr_function
def _block(dim: int) -> int:
    """The largest power of two that divides dim: what is transformed together."""
    return dim & -dim


@triton.jit
def hadamard(x, DIM: tl.constexpr):
    """x [heads, columns] float32, of which DIM are real."""
    column = tl.arange(0, x.shape[1])[None, :]
    for stage in tl.static_range(_block(DIM).bit_length() - 1):
        other = tl.gather(x, tl.broadcast_to(column ^ (1 << stage), x.shape), axis=1)
        x = tl.where((column & (1 << stage)) == 0, x + other, other - x)
    return x * (1.0 / _block(DIM) ** 0.5)


@triton.jit
def store_codes(
    x,
    pages,
    scales,
    slot,
    head,
    real,
    KIND: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
):
    """x [heads, columns] float32, of int4 after `hadamard`, to a token's slot. `head` and `real` are [heads, 1]."""
    column = tl.arange(0, x.shape[1])[None, :]
    there = real & (column < DIM)
    x = tl.where(there, x, 0.0)
    place = (slot * KV_HEADS + head) * DIM
    at = slot // BLOCK_SIZE * KV_HEADS + head
    offset = slot % BLOCK_SIZE
    if KIND == "int4":
        _store_int4(x, pages + place // 2, scales + at * 4 * BLOCK_SIZE + offset, real, DIM, BLOCK_SIZE)
    else:
        largest: tl.constexpr = 127.0 if KIND == "int8" else 448.0
        if KIND == "static":
            x = tl.clamp(x / tl.load(scales), -largest, largest)
        else:
            top = tl.max(tl.abs(x), axis=1)[:, None]
            x = x * tl.where(top > 0.0, largest / top, 0.0)
            tl.store(scales + at * BLOCK_SIZE + offset, top / largest, mask=real)
        byte = column % (DIM // 2) * 2 + column // (DIM // 2)  # see `kv_codes`
        code = tl.floor(x + 0.5).to(tl.int8) if KIND == "int8" else x.to(tl.float8e4nv, "rtne")
        tl.store(pages + place + byte, code, mask=there)


@triton.jit
def _store_int4(x, pages, scales, real, DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr):
    """The scale that reaches the largest number of a quarter is refined once, to the one with the least squared error
    for its codes."""
    SIZE: tl.constexpr = DIM // 4
    column = tl.arange(0, x.shape[1])[None, :]
    quarter = column // SIZE
    size = tl.abs(x)
    reaching = tl.zeros_like(x)
    for number in tl.static_range(4):
        top = tl.max(tl.where(quarter == number, size, 0.0), axis=1)[:, None]
        reaching = tl.where((quarter == number) & (top > 0.0), 127.0 / top, reaching)
    level = _level(_magnitude(size * reaching))
    unit = tl.zeros_like(x)
    for number in tl.static_range(4):
        mine = quarter == number
        products = tl.sum(tl.where(mine, size * level, 0.0), axis=1)[:, None]
        squares = tl.sum(tl.where(mine, level * level, 0.0), axis=1)[:, None]
        scale = tl.minimum(products / squares / INT4_SCALE, LARGEST_HALF).to(tl.float16)
        tl.store(scales + number * BLOCK_SIZE, scale, mask=real)
        wide = scale.to(tl.float32) * INT4_SCALE
        unit = tl.where(mine & (wide > 0.0), 1.0 / wide, unit)
    code = _magnitude(size * unit) + tl.where(x < 0.0, 8, 0)
    first = column // 2 + column % 2 * (2 * SIZE)  # of the two dimensions whose codes are in a byte
    inside = column < DIM // 2
    first = tl.broadcast_to(tl.where(inside, first, 0), x.shape)
    byte = tl.gather(code, first, axis=1) | (tl.gather(code, first + SIZE, axis=1) << 4)
    tl.store(pages + column, byte.to(tl.uint8), mask=real & inside)


@triton.jit
def _magnitude(size):
    """Which of the magnitudes is nearest to a size in units of the scale."""
    above = (size > 12.0).to(tl.int32) + (size > 24.5).to(tl.int32) + (size > 37.5).to(tl.int32)
    above += (size > 51.0).to(tl.int32) + (size > 66.5).to(tl.int32) + (size > 85.5).to(tl.int32)
    return above + (size > 111.5).to(tl.int32)


@triton.jit
def _level(place):
    low = tl.where(place < 2, tl.where(place == 0, 6.0, 18.0), tl.where(place == 2, 31.0, 44.0))
    high = tl.where(place < 6, tl.where(place == 4, 58.0, 75.0), tl.where(place == 6, 96.0, 127.0))
    return tl.where(place < 4, low, high)


@triton.jit
def _transform(x, HEADS: tl.constexpr, DIM: tl.constexpr, SOME: tl.constexpr, D: tl.constexpr, OVERLAP: tl.constexpr):
    let_next_begin(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * SOME + tl.arange(0, SOME)[:, None]
    column = tl.arange(0, D)[None, :]
    real = (head < HEADS) & (column < DIM)
    at = x + (token * HEADS + head) * DIM + column
    wait(OVERLAP)
    values = tl.load(at, mask=real, other=0.0).to(tl.float32)
    tl.store(at, hadamard(values, DIM).to(x.dtype.element_ty), mask=real)


_launch = Launcher(_transform)


def transform_heads(x: Tensor, head_dim: int) -> None:
    """The Hadamard transform of each head of x [tokens, heads * head_dim], in place."""
    tokens, heads = x.shape[0], x.shape[1] // head_dim
    _launch(
        (tokens, -(-heads // HEADS_AT_ONCE), 1), x.dtype, (x,), (heads, head_dim, HEADS_AT_ONCE, power_of_2(head_dim))
    )
