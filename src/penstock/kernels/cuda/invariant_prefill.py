"""Batch-invariant prefill attention: `prefill_attention` with chunks of keys at fixed positions.

Tiles of queries begin at multiples of their size, so that the queries of a tile have chunks of one size.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import dot_precision, log2_scale
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
from penstock.kernels.cuda.invariant_splits import chunk_size
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.prefill_attention import SHAPES
from penstock.kernels.interface import Batch, Pages
from penstock.kernels.upload import upload


@triton.jit(
    do_not_specialize=["table_width", "window"], do_not_specialize_on_alignment=["tables", "starts", "lengths", "tiles"]
)
def _attend(
    q,
    keys,
    values,
    tables,
    starts,
    lengths,
    tiles,
    out,
    table_width,
    scale,
    softcap,
    window,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr,
    SOFTCAP: tl.constexpr,
    PRECISION: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    tile = tl.program_id(0)
    head = tl.program_id(1)
    kv_head = head // (HEADS // KV_HEADS)
    row = tl.load(tiles + 2 * tile).to(tl.int64)
    offset = tl.load(tiles + 2 * tile + 1)  # of the tile's first query in the chunk; negative if it begins before that
    start = tl.load(starts + row)
    count = tl.load(starts + row + 1) - start
    length = tl.load(lengths + row)
    prefix = length - count

    index = offset + tl.arange(0, M)
    position = prefix + index  # of the queries
    dim = tl.arange(0, D)
    real = ((index >= 0) & (index < count))[:, None] & (dim < DIM)[None, :]
    place = ((start + index).to(tl.int64) * HEADS + head) * DIM
    query = tl.load(q + place[:, None] + dim[None, :], mask=real, other=0.0)
    table = tables + row * table_width

    size = chunk_size(prefix + offset + 1)
    first = prefix + tl.maximum(offset, 0)
    oldest = 0  # that any query of the tile sees
    if WINDOW:
        oldest = tl.maximum(first - window + 1, 0)
    begin = oldest // N * N
    end = tl.minimum(prefix + offset + M, length)
    whole = begin  # keys before this are seen by all queries of the tile
    if not WINDOW:
        whole = (first + 1) // N * N
    factor = 1.0 if SOFTCAP else scale
    row_max, row_sum, acc = no_keys(M, D)
    chunk_max, chunk_sum, chunk_acc = no_keys(M, D)
    for at in range(begin, whole, N):
        k, v = load_kv_tile(keys, values, table, at + tl.arange(0, N), kv_head, KV_HEADS, DIM, BLOCK_SIZE, D)
        scores = raw_scores(query, k, scale, softcap, SOFTCAP, PRECISION)
        chunk_max, chunk_sum, chunk_acc = add_tile(scores, factor, v, chunk_max, chunk_sum, chunk_acc, PRECISION)
        if (at + N) % size == 0:
            row_max, row_sum, acc = add_chunk(row_max, row_sum, acc, chunk_max, chunk_sum, chunk_acc)
            chunk_max, chunk_sum, chunk_acc = no_keys(M, D)
    for at in range(whole, end, N):
        key = at + tl.arange(0, N)
        there = tl.maximum(tl.minimum(key, end - 1), oldest)
        k, v = load_kv_tile(keys, values, table, there, kv_head, KV_HEADS, DIM, BLOCK_SIZE, D)
        scores = raw_scores(query, k, scale, softcap, SOFTCAP, PRECISION)
        seen = (key < end)[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        chunk_max, chunk_sum, chunk_acc = add_tile(scores, factor, v, chunk_max, chunk_sum, chunk_acc, PRECISION)
        if (at + N) % size == 0:
            row_max, row_sum, acc = add_chunk(row_max, row_sum, acc, chunk_max, chunk_sum, chunk_acc)
            chunk_max, chunk_sum, chunk_acc = no_keys(M, D)
    # After the last chunk's end this adds nothing.
    row_max, row_sum, acc = add_chunk(row_max, row_sum, acc, chunk_max, chunk_sum, chunk_acc)

    tl.store(out + place[:, None] + dim[None, :], normalize(row_sum, acc).to(out.dtype.element_ty), mask=real)


_launch = Launcher(_attend)


def aligned_tiles(batch: Batch, rows: Sequence[int], size: int) -> Tensor:
    """Row and first query of each tile of `size` queries, [tiles, 2] int32; of a row, tiles with most keys first."""
    starts, lengths = batch.host_starts, batch.host_lengths
    tiles = []
    for row in rows:
        count = starts[row + 1] - starts[row]
        tiles += [(row, offset) for offset in reversed(range(-((lengths[row] - count) % size), count, size))]
    return upload(np.array(tiles, dtype=np.int32), batch.lengths.device)


def invariant_prefill(
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
    """q [tokens, heads, head_dim] -> out [tokens, heads * head_dim], for the tiles of `aligned_tiles`."""
    heads, head_dim = q.shape[1:]
    block_size, kv_heads = pages.keys.shape[1:3]
    shape, padded = SHAPES[q.element_size()], power_of_2(head_dim)
    is_wide = padded > WIDE
    by_row = (tables, batch.starts, batch.lengths)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window)
    does = (window > 0, softcap > 0.0, dot_precision(q))
    _launch(
        (planned.shape[0], heads, 1),
        q.dtype,
        (q, pages.keys, pages.values, *by_row, planned, out, *numbers),
        (heads, kv_heads, head_dim, block_size, *does, shape.queries, KEYS[q.element_size()], padded),
        num_warps=2 * shape.warps if is_wide else shape.warps,
        num_stages=2 if is_wide else shape.stages,
        **EXACT,
    )
