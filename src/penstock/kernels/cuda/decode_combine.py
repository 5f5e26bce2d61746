"""Combine the pieces that split KV divided a row into, for decode attention."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def combine_pieces(
    parts,
    lse,
    out,
    row,
    mate,
    kv_head,
    first,
    whole,
    last,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    GROUP: tl.constexpr,
    AT_ONCE: tl.constexpr,
    D: tl.constexpr,
):
    """Combine the pieces of one row of a team, for the heads of one KV head, S pieces at a time."""
    heads_each: tl.constexpr = HEADS // KV_HEADS
    H: tl.constexpr = triton.next_power_of_2(heads_each)
    S: tl.constexpr = max(AT_ONCE // (H * D), 1)
    head = tl.arange(0, H)
    dim = tl.arange(0, D)
    row_max = tl.full([H], float("-inf"), tl.float32)
    row_sum = tl.zeros([H], tl.float32)
    acc = tl.zeros([H, D], tl.float32)
    for start in range(0, whole + 1, S):
        number = start + tl.arange(0, S)
        piece = tl.where(number < whole, first + number, last).to(tl.int64)
        part = (piece[None, :] * KV_HEADS + kv_head) * GROUP + mate * heads_each + head[:, None]
        real = (head < heads_each)[:, None] & (number <= whole)[None, :]
        places = parts + part[:, :, None] * DIM + dim[None, None, :]
        values = tl.load(places, mask=real[:, :, None] & (dim < DIM), other=0.0, cache_modifier=".cg")
        logs = tl.load(lse + part, mask=real, other=float("-inf"), cache_modifier=".cg")
        new_max = tl.maximum(row_max, tl.max(logs, axis=1))
        base = tl.where(new_max == float("-inf"), 0.0, new_max)
        weights = tl.exp2(logs - base[:, None])
        rescale = tl.exp2(row_max - base)
        row_sum = row_sum * rescale + tl.sum(weights, axis=1)
        acc = acc * rescale[:, None] + tl.sum(values * weights[:, :, None], axis=1)
        row_max = new_max
    acc = acc / tl.where(row_sum == 0.0, 1.0, row_sum)[:, None]
    place = (row + mate).to(tl.int64) * HEADS + kv_head * heads_each + head
    real = (head < heads_each)[:, None] & (dim < DIM)[None, :]
    tl.store(out + place[:, None] * DIM + dim[None, :], acc.to(out.dtype.element_ty), mask=real)
