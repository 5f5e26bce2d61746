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

from penstock.kernels.cuda.attention_tiles import (
    load_query,
    log2_scale,
    no_values,
    normalised,
    online_softmax,
    score_tile,
    store_parts,
    variant,
)
from penstock.kernels.cuda.kv_codes import PLAIN, in_memory, kinds
from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait
from penstock.kernels.interface import Batch, Pages
from penstock.kernels.upload import upload


class Shape(NamedTuple):
    queries: int
    keys: int
    warps: int
    stages: int


SHAPES = {2: Shape(64, 64, 4, 3), 4: Shape(32, 32, 4, 2)}  # by bytes per number
QUANTIZED = {2: Shape(64, 32, 4, 3), 4: Shape(32, 32, 4, 2)}  # with 64 keys, codes would spill registers


@triton.jit(
    do_not_specialize=["table_width", "window"], do_not_specialize_on_alignment=["tables", "starts", "lengths", "tiles"]
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
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
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
    place = (start + index).to(tl.int64) * HEADS + head
    query = load_query(q, place, index < count, KEYS, DIM)
    if KEYS == "static":
        scale *= tl.load(key_scales)
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
    acc = no_values(M, VALUES, DIM)
    for first in range(begin, whole, N):
        scores, v, value_scale = score_tile(
            query, keys, values, key_scales, value_scales, table, first + tl.arange(0, N), kv_head, scale, softcap,
            KEYS, VALUES, KV_HEADS, DIM, BLOCK_SIZE, SOFTCAP, PRECISION,
        )  # fmt: skip
        row_max, row_sum, acc = online_softmax(scores, v, value_scale, row_max, row_sum, acc, VALUES, PRECISION)
    for first in range(whole, end, N):
        key = first + tl.arange(0, N)
        there = tl.maximum(tl.minimum(key, end - 1), oldest)
        scores, v, value_scale = score_tile(
            query, keys, values, key_scales, value_scales, table, there, kv_head, scale, softcap,
            KEYS, VALUES, KV_HEADS, DIM, BLOCK_SIZE, SOFTCAP, PRECISION,
        )  # fmt: skip
        seen = (key < end)[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - window)
        scores = tl.where(seen, scores, float("-inf"))
        row_max, row_sum, acc = online_softmax(scores, v, value_scale, row_max, row_sum, acc, VALUES, PRECISION)

    store_parts(out, place, index < count, normalised(acc, row_sum, value_scales, VALUES), VALUES, DIM)


_launch = Launcher(_attend)


def chosen_shape(q: Tensor, pages: Pages) -> Shape:
    return (SHAPES if kinds(pages) == PLAIN else QUANTIZED)[q.element_size()]


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
    shape = chosen_shape(q, pages)
    by_row = (tables, batch.starts, batch.lengths)
    numbers = (tables.stride(0), log2_scale(scale, softcap), softcap, window)
    _launch(
        (planned.shape[0], q.shape[1], 1),
        q.dtype,
        (q, *in_memory(pages), *by_row, planned, out, *numbers),
        (*variant(q, pages, window, softcap), shape.queries, shape.keys),
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
