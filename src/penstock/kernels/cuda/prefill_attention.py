"""Prefill attention: flash attention of chunks of several tokens over paged KV, with cached prefix, causal mask,
sliding window and soft-cap.

A program takes a tile of one row's queries and one head. The host lists the tiles, once per step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import dot_precision, load_kv_tile, log2_scale, online_softmax, qk_scores
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import Batch, Pages
from penstock.kernels.upload import upload


class Shape(NamedTuple):
    queries: int
    keys: int
    warps: int
    stages: int


SHAPES = {2: Shape(64, 64, 4, 3), 4: Shape(32, 32, 4, 2)}  # by bytes per number


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
    offset = tl.load(tiles + 2 * tile + 1)  # of the tile's first query in the chunk
    start = tl.load(starts + row)
    count = tl.load(starts + row + 1) - start
    length = tl.load(lengths + row)
    prefix = length - count

    index = offset + tl.arange(0, M)
    position = prefix + index  # of the queries
    dim = tl.arange(0, D)
    real = (index < count)[:, None] & (dim < DIM)[None, :]
    place = ((start + index).to(tl.int64) * HEADS + head) * DIM
    query = tl.load(q + place[:, None] + dim[None, :], mask=real, other=0.0)
    table = tables + row * table_width

    oldest = 0  # that any query of the tile sees
    if WINDOW:
        oldest = tl.maximum(prefix + offset - window + 1, 0)
    begin = oldest // N * N
    end = tl.minimum(prefix + offset + M, length)
    whole = begin  # keys before this are seen by all queries of the tile
    if not WINDOW:
        whole = (prefix + offset + 1) // N * N
    row_max = tl.full([M], float("-inf"), tl.float32)
    row_sum = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    for first in range(begin, whole, N):
        k, v = load_kv_tile(keys, values, table, first + tl.arange(0, N), kv_head, KV_HEADS, DIM, BLOCK_SIZE, D)
        scores = qk_scores(query, k, scale, softcap, SOFTCAP, PRECISION)
        row_max, row_sum, acc = online_softmax(scores, v, row_max, row_sum, acc, PRECISION)
    for first in range(whole, end, N):
        key = first + tl.arange(0, N)
        there = tl.maximum(tl.minimum(key, end - 1), oldest)
        k, v = load_kv_tile(keys, values, table, there, kv_head, KV_HEADS, DIM, BLOCK_SIZE, D)
        scores = qk_scores(query, k, scale, softcap, SOFTCAP, PRECISION)
        seen = (key < end)[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        row_max, row_sum, acc = online_softmax(scores, v, row_max, row_sum, acc, PRECISION)

    acc = acc / row_sum[:, None]
    tl.store(out + place[:, None] + dim[None, :], acc.to(out.dtype.element_ty), mask=real)


_launch = Launcher(_attend)


def query_tiles(batch: Batch, rows: Sequence[int], size: int) -> Tensor:
    """Row and first query of each tile of `size` queries, [tiles, 2] int32; of a row, tiles with most keys first."""
    starts = batch.host_starts
    tiles = [(row, offset) for row in rows for offset in reversed(range(0, starts[row + 1] - starts[row], size))]
    return upload(np.array(tiles, dtype=np.int32), batch.lengths.device)


def prefill_attention(
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
    """q [tokens, heads, head_dim] -> out [tokens, heads * head_dim], for the tiles of `query_tiles`."""
    heads, head_dim = q.shape[1:]
    block_size, kv_heads = pages.keys.shape[1:3]
    shape = SHAPES[q.element_size()]
    by_row = (tables, batch.starts, batch.lengths)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window)
    does = (window > 0, softcap > 0.0, dot_precision(q))
    _launch(
        (planned.shape[0], heads, 1),
        q.dtype,
        (q, pages.keys, pages.values, *by_row, planned, out, *numbers),
        (heads, kv_heads, head_dim, block_size, *does, shape.queries, shape.keys, power_of_2(head_dim)),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
