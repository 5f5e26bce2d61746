"""Batch-invariant decode attention: `decode_attention` with chunks of keys at fixed positions.

A program takes one or several chunks of a row, for the query heads that share a KV head, and for a team of rows. If
these are all, it adds them up itself, else the program that ends last does, in the same order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import dot_precision, log2_scale
from penstock.kernels.cuda.decode_attention import SHAPES
from penstock.kernels.cuda.invariant_softmax import (
    EXACT,
    KEYS,
    WIDE,
    add_chunk,
    add_tile,
    load_kv_tile,
    no_keys,
    normalize,
    raw_scores,
)
from penstock.kernels.cuda.invariant_splits import (
    CHUNK,
    MAX_CHUNKS,
    InvariantPlan,
    chunk_size,
    invariant_team,
    team_rows,
)
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Pages

AT_ONCE = 4096  # numbers of partial results that are read at a time


@triton.jit
def _add_parts(
    parts,
    maxima,
    sums,
    out,
    row,
    kv_head,
    first,
    end,
    chunks,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    AT_ONCE: tl.constexpr,
    D: tl.constexpr,
):
    """Add up the chunks `first` to `end` - 1 of one row, for the heads of one KV head."""
    heads_each: tl.constexpr = HEADS // KV_HEADS
    H: tl.constexpr = triton.next_power_of_2(heads_each)
    S: tl.constexpr = min(max(AT_ONCE // (H * D), 1), 8)
    head = tl.arange(0, H)
    dim = tl.arange(0, D)[None, :]
    row_max, row_sum, acc = no_keys(H, D)
    for start in range(first, end, S):
        for number in tl.static_range(S):
            chunk = start + number
            place = (row.to(tl.int64) * chunks + chunk) * HEADS + kv_head * heads_each + head
            real = (head < heads_each) & (chunk < end)
            chunk_max = tl.load(maxima + place, mask=real, other=float("-inf"), cache_modifier=".cg")
            chunk_sum = tl.load(sums + place, mask=real, other=0.0, cache_modifier=".cg")
            at = parts + place[:, None] * DIM + dim
            chunk_acc = tl.load(at, mask=real[:, None] & (dim < DIM), other=0.0, cache_modifier=".cg")
            row_max, row_sum, acc = add_chunk(row_max, row_sum, acc, chunk_max, chunk_sum, chunk_acc)
    place = row.to(tl.int64) * HEADS + kv_head * heads_each + head
    result = normalize(row_sum, acc).to(out.dtype.element_ty)
    tl.store(out + place[:, None] * DIM + dim, result, mask=(head < heads_each)[:, None] & (dim < DIM))


@triton.jit(
    do_not_specialize=["table_width", "window", "chunks"],
    do_not_specialize_on_alignment=["tables", "lengths", "runs", "pieces", "counts", "arrived"],
)
def _attend(
    q,
    keys,
    values,
    tables,
    lengths,
    runs,
    pieces,
    counts,
    arrived,
    out,
    parts,
    maxima,
    sums,
    table_width,
    scale,
    softcap,
    window,
    chunks,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    GROUP: tl.constexpr,
    N: tl.constexpr,
    AT_ONCE: tl.constexpr,
    D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    heads_each: tl.constexpr = HEADS // KV_HEADS
    kv_head = tl.program_id(0)
    piece = tl.program_id(1)
    row = tl.load(pieces + 3 * piece, cache_modifier=".cg")
    begin = tl.load(pieces + 3 * piece + 1, cache_modifier=".cg")
    end = tl.load(pieces + 3 * piece + 2, cache_modifier=".cg")
    if begin >= end:
        wait(OVERLAP)
        return
    of_row = tl.load(counts + row, cache_modifier=".cg")
    length = tl.load(lengths + row)  # of the team's first row; the others have one key more each
    count = invariant_team(runs, row, True, length, GROUP // heads_each)
    size = chunk_size(length)
    table = tables + (row + count - 1).to(tl.int64) * table_width  # those of the others may not reach as far
    wait(OVERLAP)

    member = tl.arange(0, GROUP)
    mate = member // heads_each
    owner = (row + mate).to(tl.int64)
    head = kv_head * heads_each + member % heads_each
    place = owner * HEADS + head
    dim = tl.arange(0, D)
    real = (mate < count)[:, None] & (dim < DIM)[None, :]
    query = tl.load(q + place[:, None] * DIM + dim[None, :], mask=real, other=0.0)

    oldest = 0  # that any row of the team sees
    if WINDOW:
        oldest = tl.maximum(length - window, 0)
    row_max, row_sum, acc = no_keys(GROUP, D)
    chunk_max, chunk_sum, chunk_acc = no_keys(GROUP, D)
    for start in range(tl.maximum(begin, oldest // N * N), end, N):
        position = start + tl.arange(0, N)
        there = tl.maximum(tl.minimum(position, end - 1), oldest)
        k, v = load_kv_tile(keys, values, table, there, kv_head, KV_HEADS, DIM, BLOCK_SIZE, D)
        scores = raw_scores(query, k, scale, softcap, SOFTCAP, PRECISION)
        seen = (position < end)[None, :] & (position[None, :] < length + mate[:, None])
        if WINDOW:
            seen = seen & (position[None, :] >= length + mate[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        factor = 1.0 if SOFTCAP else scale
        chunk_max, chunk_sum, chunk_acc = add_tile(scores, factor, v, chunk_max, chunk_sum, chunk_acc, PRECISION)
        next_tile = start + N
        if (next_tile % size == 0) | (next_tile >= end):
            if of_row == 1:
                row_max, row_sum, acc = add_chunk(row_max, row_sum, acc, chunk_max, chunk_sum, chunk_acc)
            else:
                part = (owner * chunks + start // size) * HEADS + head
                tl.store(parts + part[:, None] * DIM + dim[None, :], chunk_acc, mask=real)
                tl.store(maxima + part, chunk_max, mask=mate < count)
                tl.store(sums + part, chunk_sum, mask=mate < count)
            chunk_max, chunk_sum, chunk_acc = no_keys(GROUP, D)

    if of_row == 1:
        tl.store(out + place[:, None] * DIM + dim[None, :], normalize(row_sum, acc).to(out.dtype.element_ty), mask=real)
    else:
        tl.debug_barrier()
        counter = arrived + row * KV_HEADS + kv_head
        if tl.atomic_add(counter, 1, sem="acq_rel") == of_row - 1:
            tl.store(counter, 0)  # for the next layer
            for number in range(count):
                _add_parts(
                    parts, maxima, sums, out, row + number, kv_head,
                    oldest // size, tl.cdiv(length + count - 1, size), chunks,
                    HEADS, KV_HEADS, DIM, AT_ONCE, D,
                )  # fmt: skip


_launch = Launcher(_attend)


def invariant_decode(
    q: Tensor,
    pages: Pages,
    tables: Tensor,
    lengths: Tensor,
    plan: InvariantPlan,
    out: Tensor,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> None:
    """q [rows, heads, head_dim] -> out [rows, heads * head_dim], one token per row."""
    rows, heads, head_dim = q.shape
    block_size, kv_heads = pages.keys.shape[1:3]
    shape, group, padded = SHAPES[q.element_size()], team_rows(heads, kv_heads), power_of_2(head_dim)
    chunks = min(MAX_CHUNKS.value, -(-tables.shape[1] * block_size // CHUNK.value))
    parts = torch.empty(rows, chunks, heads, head_dim, dtype=torch.float32, device=q.device)
    maxima, sums = (torch.empty(rows, chunks, heads, dtype=torch.float32, device=q.device) for _ in range(2))
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window, chunks)
    does = (window > 0, softcap > 0.0, dot_precision(q))
    _launch(
        (kv_heads, plan.pieces.shape[0], 1),
        q.dtype,
        (q, pages.keys, pages.values, tables, lengths, *plan, out, parts, maxima, sums, *numbers),
        (heads, kv_heads, head_dim, block_size, *does, group, KEYS[q.element_size()], AT_ONCE, padded),
        num_warps=2 * shape.warps if padded > WIDE else shape.warps,
        num_stages=shape.stages,
        **EXACT,
    )
