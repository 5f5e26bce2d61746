"""Flash attention of short chunks over paged KV, with split KV: they often follow a long cached prefix.

As in `decode_attention`, keys are split over programs, and the query heads that share a KV head are the rows of one
matrix, here those of several tokens. A second launch combines the splits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import (
    MAX_SPLITS,
    combine_splits,
    dot_precision,
    load_kv_tile,
    log2_scale,
    num_splits,
    online_softmax,
    qk_scores,
)
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Batch, Pages

LONGEST = 64  # tokens of a chunk
TOKENS = 16  # of a tile
KEYS = {2: 64, 4: 32}  # taken at a time, by bytes per number


@triton.jit
def _span(starts, lengths, tiles, tile, window, WINDOW: tl.constexpr, TOKENS: tl.constexpr):
    """Of a tile: row, first packed token, number of tokens, position of the first, and the oldest key that it sees."""
    row = tl.load(tiles + 2 * tile)
    offset = tl.load(tiles + 2 * tile + 1)
    start = tl.load(starts + row)
    count = tl.load(starts + row + 1) - start
    position = tl.load(lengths + row) - count + offset
    oldest = 0
    if WINDOW:
        oldest = tl.maximum(position - window + 1, 0)
    return row, start + offset, tl.minimum(count - offset, TOKENS), position, oldest


@triton.jit(
    do_not_specialize=["table_width", "window", "splits"],
    do_not_specialize_on_alignment=["tables", "starts", "lengths", "tiles"],
)
def _attend(
    q,
    keys,
    values,
    tables,
    starts,
    lengths,
    tiles,
    parts,
    lse,
    table_width,
    scale,
    softcap,
    window,
    splits,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    TOKENS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    split = tl.program_id(2)
    row, token, count, first, oldest = _span(starts, lengths, tiles, tile, window, WINDOW, TOKENS)
    newest = first + count
    share = tl.cdiv(tl.cdiv(newest, N) - oldest // N, splits)
    begin = (oldest // N + split * share) * N
    end = tl.minimum(begin + share * N, newest)
    if begin >= end:
        return

    heads_each: tl.constexpr = HEADS // KV_HEADS
    member = tl.arange(0, M)
    index = member // heads_each
    head = kv_head * heads_each + member % heads_each
    dim = tl.arange(0, D)
    real = (index < count)[:, None] & (dim < DIM)[None, :]
    place = ((token + index).to(tl.int64) * HEADS + head) * DIM
    query = tl.load(q + place[:, None] + dim[None, :], mask=real, other=0.0)
    table = tables + row.to(tl.int64) * table_width

    row_max = tl.full([M], float("-inf"), tl.float32)
    row_sum = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        there = tl.maximum(tl.minimum(key, end - 1), oldest)
        k, v = load_kv_tile(keys, values, table, there, kv_head, KV_HEADS, DIM, BLOCK_SIZE, D)
        scores = qk_scores(query, k, scale, softcap, SOFTCAP, PRECISION)
        seen = (key < end)[None, :] & (key[None, :] <= first + index[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > first + index[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        row_max, row_sum, acc = online_softmax(scores, v, row_max, row_sum, acc, PRECISION)

    acc = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]  # a query may see nothing of this split
    part = ((tile * TOKENS + index).to(tl.int64) * HEADS + head) * splits + split
    tl.store(parts + part[:, None] * DIM + dim[None, :], acc, mask=real)
    tl.store(lse + part, row_max + tl.log2(row_sum), mask=index < count)


@triton.jit(do_not_specialize=["window", "splits"], do_not_specialize_on_alignment=["starts", "lengths", "tiles"])
def _combine(
    parts,
    lse,
    starts,
    lengths,
    tiles,
    out,
    window,
    splits,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    WINDOW: tl.constexpr,
    TOKENS: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    S: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    tile = tl.program_id(0) // TOKENS
    index = tl.program_id(0) % TOKENS
    head = tl.program_id(1)
    _, token, count, first, oldest = _span(starts, lengths, tiles, tile, window, WINDOW, TOKENS)
    if index >= count:
        return
    passes = tl.cdiv(first + count, N) - oldest // N
    used = tl.cdiv(passes, tl.cdiv(passes, splits))
    place = (tile * TOKENS + index).to(tl.int64) * HEADS + head
    acc = combine_splits(parts, lse, place, splits, used, DIM, D, S)
    dim = tl.arange(0, D)
    at = ((token + index).to(tl.int64) * HEADS + head) * DIM + dim
    tl.store(out + at, acc.to(out.dtype.element_ty), mask=dim < DIM)


_launch_attend, _launch_combine = Launcher(_attend), Launcher(_combine)


def prefill_split_kv(
    q: Tensor,
    pages: Pages,
    tables: Tensor,
    batch: Batch,
    planned: Tensor,
    out: Tensor,
    *,
    scale: float,
    window: int,
    softcap: float,
) -> None:
    """q [tokens, heads, head_dim] -> out [tokens, heads * head_dim], for tiles of `query_tiles`."""
    heads, head_dim = q.shape[1:]
    block_size, kv_heads = pages.keys.shape[1:3]
    tiles, padded, keys = planned.shape[0], power_of_2(head_dim), KEYS[q.element_size()]
    splits = num_splits(tiles * kv_heads)
    parts = torch.empty(tiles * TOKENS, heads, splits, head_dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(tiles * TOKENS, heads, splits, dtype=torch.float32, device=q.device)
    rows = (batch.starts, batch.lengths, planned)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window, splits)
    does = (window > 0, softcap > 0.0, dot_precision(q))
    group = power_of_2(TOKENS * (heads // kv_heads))
    _launch_attend(
        (tiles, kv_heads, splits),
        q.dtype,
        (q, pages.keys, pages.values, tables, *rows, parts, lse, *numbers),
        (heads, kv_heads, head_dim, block_size, *does, TOKENS, group, keys, padded),
        num_warps=4,
        num_stages=2,
    )
    _launch_combine(
        (tiles * TOKENS, heads, 1),
        q.dtype,
        (parts, lse, *rows, out, window, splits),
        (heads, head_dim, window > 0, TOKENS, keys, padded, MAX_SPLITS),
    )
