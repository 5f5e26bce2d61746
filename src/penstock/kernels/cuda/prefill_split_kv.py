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
    load_query,
    log2_scale,
    no_values,
    normalised,
    num_splits,
    online_softmax,
    score_tile,
    store_parts,
    variant,
)
from penstock.kernels.cuda.kv_codes import PLAIN, in_memory, kinds
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Batch, Pages

LONGEST = 64  # tokens of a chunk
TOKENS = 16  # of a tile
KEYS = {2: 64, 4: 32}  # taken at a time, by bytes per number
QUANTIZED_KEYS = 32


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
    key_scales,
    value_scales,
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
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    TOKENS: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
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
    place = (token + index).to(tl.int64) * HEADS + head
    query = load_query(q, place, index < count, KEYS, DIM)
    if KEYS == "static":
        scale *= tl.load(key_scales)
    table = tables + row.to(tl.int64) * table_width

    row_max = tl.full([M], float("-inf"), tl.float32)
    row_sum = tl.zeros([M], tl.float32)
    acc = no_values(M, VALUES, DIM)
    for start in range(begin, end, N):
        key = start + tl.arange(0, N)
        there = tl.maximum(tl.minimum(key, end - 1), oldest)
        scores, v, value_scale = score_tile(
            query, keys, values, key_scales, value_scales, table, there, kv_head, scale, softcap,
            KEYS, VALUES, KV_HEADS, DIM, BLOCK_SIZE, SOFTCAP, PRECISION,
        )  # fmt: skip
        seen = (key < end)[None, :] & (key[None, :] <= first + index[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > first + index[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        row_max, row_sum, acc = online_softmax(scores, v, value_scale, row_max, row_sum, acc, VALUES, PRECISION)

    # A query may see nothing of this split.
    acc = normalised(acc, tl.where(row_sum == 0.0, 1.0, row_sum), value_scales, VALUES)
    part = ((tile * TOKENS + index).to(tl.int64) * HEADS + head) * splits + split
    store_parts(parts, part, index < count, acc, VALUES, DIM)
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
    kv_heads = pages.keys.shape[2]
    tiles, padded = planned.shape[0], power_of_2(head_dim)
    keys = KEYS[q.element_size()] if kinds(pages) == PLAIN else QUANTIZED_KEYS
    splits = num_splits(tiles * kv_heads)
    parts = torch.empty(tiles * TOKENS, heads, splits, head_dim, dtype=torch.float32, device=q.device)
    lse = torch.empty(tiles * TOKENS, heads, splits, dtype=torch.float32, device=q.device)
    rows = (batch.starts, batch.lengths, planned)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window, splits)
    group = power_of_2(TOKENS * (heads // kv_heads))
    _launch_attend(
        (tiles, kv_heads, splits),
        q.dtype,
        (q, *in_memory(pages), tables, *rows, parts, lse, *numbers),
        (*variant(q, pages, window, softcap), TOKENS, group, keys),
        num_warps=4,
        num_stages=2,
    )
    _launch_combine(
        (tiles * TOKENS, heads, 1),
        q.dtype,
        (parts, lse, *rows, out, window, splits),
        (heads, head_dim, window > 0, TOKENS, keys, padded, MAX_SPLITS),
    )
