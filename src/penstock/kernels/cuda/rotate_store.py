"""Head norms of q and k, rotary embedding (RoPE), and the write of k and v to the KV pages, in one pass over qkv.

A program takes one token and a few of its heads, of q, k or v. Keys and values are quantized on the way (`kv_store`).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.kv_codes import head_dim, in_memory, kinds
from penstock.kernels.cuda.kv_store import hadamard, store_codes
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.interface import BlockMap, HeadNorms, Pages, Rotary

HEADS_AT_ONCE = 8


@triton.jit(do_not_specialize_on_alignment=["targets", "positions"])
def _kernel(
    qkv,
    q_out,
    keys,
    values,
    key_scales,
    value_scales,
    targets,
    positions,
    table,
    q_weight,
    k_weight,
    eps,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROTATED: tl.constexpr,
    NORMED: tl.constexpr,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SOME: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * SOME + tl.arange(0, SOME)[:, None]
    at = tl.arange(0, BLOCK)[None, :]
    inside = (head < HEADS + 2 * KV_HEADS) & (at < DIM)
    half: tl.constexpr = ROTATED // 2
    partner = tl.where(at < half, at + half, tl.where(at < ROTATED, at - half, at))
    angles = table + tl.load(positions + token) * ROTATED + at % half
    cos = tl.load(angles, mask=at < ROTATED, other=1.0)
    sin = tl.load(angles + half, mask=at < ROTATED, other=0.0)
    target = tl.load(targets + token)
    slot = target * KV_HEADS * DIM
    wait(OVERLAP)
    first = qkv + token * (HEADS + 2 * KV_HEADS) * DIM + head * DIM
    raw = tl.load(first + at, mask=inside, other=0.0)
    x = raw.to(tl.float32)
    other = tl.load(first + partner, mask=inside, other=0.0).to(tl.float32)
    if NORMED:
        scale = tl.rsqrt(tl.sum(x * x, axis=1)[:, None] / DIM + eps)
        is_q = head < HEADS
        weight = tl.where(
            is_q,
            tl.load(q_weight + at, mask=at < DIM, other=0.0),
            tl.load(k_weight + at, mask=at < DIM, other=0.0),
        )
        other_weight = tl.where(
            is_q,
            tl.load(q_weight + partner, mask=at < DIM, other=0.0),
            tl.load(k_weight + partner, mask=at < DIM, other=0.0),
        )
        x = (x * scale * weight).to(raw.dtype).to(tl.float32)
        other = (other * scale * other_weight).to(raw.dtype).to(tl.float32)
    turned = (x * cos + other * tl.where(at < half, -sin, sin)).to(raw.dtype)

    key = turned.to(tl.float32)
    if KEYS == "int4":
        key = hadamard(key, DIM)
        turned = key.to(raw.dtype)
    tl.store(q_out + token * HEADS * DIM + head * DIM + at, turned, mask=inside & (head < HEADS))
    is_k = (head >= HEADS) & (head < HEADS + KV_HEADS)
    is_v = (head >= HEADS + KV_HEADS) & (head < HEADS + 2 * KV_HEADS)
    if KEYS == "plain":
        tl.store(keys + slot + (head - HEADS) * DIM + at, turned, mask=inside & is_k)
    elif (tl.program_id(1) + 1) * SOME > HEADS:
        store_codes(key, keys, key_scales, target, head - HEADS, is_k, KEYS, KV_HEADS, DIM, BLOCK_SIZE)
    if VALUES == "plain":
        tl.store(values + slot + (head - HEADS - KV_HEADS) * DIM + at, raw, mask=inside & (head >= HEADS + KV_HEADS))
    elif (tl.program_id(1) + 1) * SOME > HEADS + KV_HEADS:
        value, kv_head = raw.to(tl.float32), head - HEADS - KV_HEADS
        if VALUES == "int4":
            value = hadamard(value, DIM)
        store_codes(value, values, value_scales, target, kv_head, is_v, VALUES, KV_HEADS, DIM, BLOCK_SIZE)


_launch = Launcher(_kernel)


def rotate_store(
    qkv: Tensor,
    pages: Pages,
    block_map: BlockMap,
    positions: Tensor,
    rotary: Rotary,
    norms: HeadNorms | None,
    q: Tensor | None = None,
) -> Tensor:
    """See `interface.Operations`. `q`: memory for the result."""
    block_size, kv_heads = pages.keys.shape[1:3]
    dim = head_dim(pages)
    tokens, heads = qkv.shape[0], qkv.shape[1] // dim - 2 * kv_heads
    if q is None:
        q = torch.empty(tokens, heads, dim, dtype=qkv.dtype, device=qkv.device)
    q_weight, k_weight, eps = norms or (rotary.table, rotary.table, 0.0)
    _launch(
        (tokens, -(-(heads + 2 * kv_heads) // HEADS_AT_ONCE), 1),
        q.dtype,
        (qkv, q, *in_memory(pages), block_map.targets, positions, rotary.table, q_weight, k_weight, eps),
        (
            heads,
            kv_heads,
            dim,
            rotary.dim,
            norms is not None,
            *kinds(pages),
            block_size,
            HEADS_AT_ONCE,
            power_of_2(dim),
        ),
    )
    return q
