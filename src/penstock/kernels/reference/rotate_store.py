"""From the qkv projection to attention: head norms, rotary embedding (RoPE), write of k and v to the KV pages."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from penstock.kernels.interface import BlockMap, HeadNorms, Pages, Rotary


class Angles(NamedTuple):
    """A step's rotation, for all heads of all layers: x * cos + (x with its halves swapped) * sin. Float32."""

    cos: Tensor  # [tokens, 1, dim]
    sin: Tensor  # [tokens, 1, dim], the first half negated
    dim: int


def angles(rotary: Rotary, positions: Tensor) -> Angles:
    cos, sin = rotary.table[positions].unbind(dim=1)
    return Angles(torch.cat((cos, cos), dim=-1)[:, None], torch.cat((-sin, sin), dim=-1)[:, None], rotary.dim)


def reference(
    qkv: Tensor,  # [tokens, (heads + 2 * kv_heads) * head_dim]
    pages: Pages,
    block_map: BlockMap,
    turn: Angles,
    norms: HeadNorms | None,
) -> Tensor:
    kv_heads, head_dim = pages.keys.shape[-2:]
    heads = qkv.shape[1] // head_dim - 2 * kv_heads
    parts = qkv.view(-1, heads + 2 * kv_heads, head_dim)
    qk, v = parts[:, : heads + kv_heads], parts[:, heads + kv_heads :]
    if norms is not None:
        qk = _norm(qk, heads, *norms)
    qk = _rotate(qk, turn)
    pages.keys.view(-1, kv_heads * head_dim).index_copy_(0, block_map.targets, qk[:, heads:].flatten(1))
    pages.values.view(-1, kv_heads * head_dim).index_copy_(0, block_map.targets, v.flatten(1))
    return qk[:, :heads]


def _norm(qk: Tensor, heads: int, q_weight: Tensor, k_weight: Tensor, eps: float) -> Tensor:
    normed = F.rms_norm(qk.float(), q_weight.shape, None, eps)
    normed[:, :heads].mul_(q_weight)
    normed[:, heads:].mul_(k_weight)
    return normed.to(qk.dtype)


def _rotate(x: Tensor, turn: Angles) -> Tensor:
    if turn.dim < x.shape[-1]:
        return torch.cat((_rotate(x[..., : turn.dim], turn), x[..., turn.dim :]), dim=-1)
    return torch.addcmul(x * turn.cos, x.roll(turn.dim // 2, dims=-1), turn.sin).to(x.dtype)
