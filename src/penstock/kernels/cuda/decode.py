"""Attention of rows of one token: the keys of a row are split over several programs, and the query heads that share
them stand together as the rows of one matrix, so that keys and values are read once.

How many keys a split takes follows from the row's length on the device; the number of splits depends on the number of
rows alone. So one launch shape serves all lengths, which is what a CUDA graph needs.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, fetch, let_next_begin, wait
from penstock.kernels.cuda.tiles import (
    accumulate,
    combine,
    log2_scale,
    precision,
    scores_of,
    slots_of,
    splits_for,
)
from penstock.kernels.interface import Pages


class Shape(NamedTuple):
    keys: int  # taken at a time
    warps: int
    stages: int


SHAPES = {2: Shape(64, 2, 3), 4: Shape(32, 4, 2)}  # by bytes per number
FETCHED = 128  # keys of a program that are fetched to the cache before its queries are there


@triton.jit(do_not_specialize=["table_width", "window", "splits"], do_not_specialize_on_alignment=["tables", "lengths"])
def _attend(
    q,
    keys,
    values,
    tables,
    lengths,
    out,
    masses,
    table_width,
    scale,
    softcap,
    window,
    splits,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    FETCHED: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    length = tl.load(lengths + row)
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(length - window, 0)
    first_tile = oldest // N
    share = tl.cdiv(tl.cdiv(length, N) - first_tile, splits)
    begin = (first_tile + split * share) * N
    end = tl.minimum(begin + share * N, length)
    table = tables + row * table_width
    if FETCHED > 0:
        early = begin + tl.arange(0, FETCHED)
        line = slots_of(table, early, early < end, BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
        bits: tl.constexpr = keys.dtype.element_ty.primitive_bitwidth
        part = tl.minimum(tl.arange(0, max(1, D * bits // 1024)) * (1024 // bits), DIM - 1)
        line = tl.where(early < end, line, kv_head * DIM)[:, None] + part[None, :]
        fetch(keys + line, OVERLAP)
        fetch(values + line, OVERLAP)
    wait(OVERLAP)
    if begin >= end:
        return

    heads_each: tl.constexpr = HEADS // KV_HEADS
    member = tl.arange(0, GROUP)
    head = kv_head * heads_each + member
    dim = tl.arange(0, D)
    real = (member < heads_each)[:, None] & (dim < DIM)[None, :]
    query = tl.load(q + row * HEADS * DIM + head[:, None] * DIM + dim[None, :], mask=real, other=0.0)

    best = tl.full([GROUP], float("-inf"), tl.float32)
    mass = tl.zeros([GROUP], tl.float32)
    mixed = tl.zeros([GROUP, D], tl.float32)
    for start in range(begin, end, N):
        position = start + tl.arange(0, N)
        seen = position < end
        if WINDOW:
            seen = seen & (position >= oldest)
        at = slots_of(table, position, seen, BLOCK_SIZE) * (KV_HEADS * DIM) + kv_head * DIM
        k = tl.load(keys + at[None, :] + dim[:, None], mask=seen[None, :] & (dim < DIM)[:, None], other=0.0)
        v = tl.load(values + at[:, None] + dim[None, :], mask=seen[:, None] & (dim < DIM)[None, :], other=0.0)
        scores = scores_of(query, k, scale, softcap, SOFTCAP, PRECISION)
        scores = tl.where(seen[None, :], scores, float("-inf"))
        best, mass, mixed = accumulate(scores, v, best, mass, mixed, PRECISION)

    mixed = mixed / mass[:, None]
    place = (row * HEADS + head) * splits + split
    tl.store(out + place[:, None] * DIM + dim[None, :], mixed.to(out.dtype.element_ty), mask=real)
    if SPLIT:
        tl.store(masses + place, best + tl.log2(mass), mask=member < heads_each)


@triton.jit(do_not_specialize=["window", "splits"], do_not_specialize_on_alignment=["lengths"])
def _combine(
    parts,
    masses,
    lengths,
    out,
    window,
    splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    first_tile = 0
    if WINDOW:
        first_tile = tl.maximum(length - window, 0) // N
    tiles = tl.cdiv(length, N) - first_tile
    used = tl.cdiv(tiles, tl.cdiv(tiles, splits))
    place = row * HEADS + tl.program_id(1)
    mixed = combine(parts, masses, place, splits, used, DIM, D, S)
    dim = tl.arange(0, D)
    tl.store(out + place * DIM + dim, mixed.to(out.dtype.element_ty), mask=dim < DIM)


_launch_attend, _launch_combine = Launcher(_attend), Launcher(_combine)


def decode(
    q: Tensor, pages: Pages, tables: Tensor, lengths: Tensor, out: Tensor, *, scale: float, window: int, softcap: float
) -> None:
    """q [rows, heads, head_dim] -> out [rows, heads * head_dim], one token per row."""
    rows, heads, head_dim = q.shape
    block_size, kv_heads = pages.keys.shape[1:3]
    shape = SHAPES[q.element_size()]
    splits = splits_for(rows * kv_heads)
    padded = triton.next_power_of_2(head_dim)
    parts, masses = out, out
    if splits > 1:
        parts = torch.empty(rows, heads, splits, head_dim, dtype=torch.float32, device=q.device)
        masses = torch.empty(rows, heads, splits, dtype=torch.float32, device=q.device)
    _launch_attend(
        (rows, kv_heads, splits),
        q.dtype,
        (
            q,
            pages.keys,
            pages.values,
            tables,
            lengths,
            parts,
            masses,
            tables.stride(0),
            log2_scale(scale, softcap),
            softcap,
            window,
            splits,
        ),
        (
            heads,
            kv_heads,
            head_dim,
            block_size,
            splits > 1,
            window > 0,
            softcap > 0.0,
            precision(q),
            max(16, triton.next_power_of_2(heads // kv_heads)),
            shape.keys,
            padded,
            FETCHED,
        ),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    if splits > 1:
        _launch_combine(
            (rows, heads, 1),
            q.dtype,
            (parts, masses, lengths, out, window, splits),
            (heads, head_dim, window > 0, shape.keys, padded, triton.next_power_of_2(splits)),
            num_warps=1 if splits <= 4 else 4,
        )
