"""Attention over the KV cache: what happens between the projection to q, k and v and the projection back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.kernels.interface import HeadNorms, Operations, Rotary
from penstock.model.layers.step import LayerStep

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Attention:
    rotary: Rotary
    head_norms: HeadNorms | None
    cache_group: int
    window: int  # tokens a query sees, itself included; 0: all
    scale: float
    softcap: float  # 0: off

    def __call__(self, ops: Operations, qkv: Tensor, step: LayerStep) -> Tensor:
        """Rotate q and k, write k and v to the KV pages, attend: gives [tokens, heads * head_dim]."""
        batch, pages = step.batch, step.pages
        block_map = batch.maps[self.cache_group]
        q = ops.rotate_store(qkv, pages, block_map, batch, self.rotary, self.head_norms)
        return ops.attention(q, pages, block_map, batch, scale=self.scale, window=self.window, softcap=self.softcap)
