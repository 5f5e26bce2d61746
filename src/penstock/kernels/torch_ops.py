"""The operations in plain torch, on any device."""

from __future__ import annotations

from torch import Tensor

from penstock.kernels.cpu.packed import plain
from penstock.kernels.interface import Activation, Batch, BlockMap, HeadNorms, Matrix, Norm, Pages, Rotary
from penstock.kernels.per_batch import PerBatch
from penstock.kernels.reference import attention, embed, gate, linear, logits, rotate_store
from penstock.kernels.reference import norm as norm_


class TorchOperations:
    """Implements `interface.Operations`."""

    def __init__(self) -> None:
        self._shared = PerBatch()

    def embed(self, tokens: Tensor, table: Matrix, scale: float) -> Tensor:
        return embed.reference(tokens, plain(table), scale)

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        y = norm_.reference(x, norm)
        return y if onto is None else onto.add_(y)

    def linear(
        self,
        x: Tensor,
        weight: Matrix,
        bias: Tensor | None = None,
        *,
        norm: Norm | None = None,
        onto: Tensor | None = None,
    ) -> Tensor:
        weight = plain(weight)
        if norm is not None:
            x = self.norm(x, norm)
        y = linear.packed(x, weight, bias) if weight.is_mkldnn else linear.reference(x, weight, bias)
        return y if onto is None else onto.add_(y)

    def gated(
        self, x: Tensor, weight: Matrix, bias: Tensor | None, activation: Activation, *, norm: Norm | None = None
    ) -> Tensor:
        return gate.reference(self.linear(x, weight, bias, norm=norm), activation)

    def rotate_store(
        self,
        qkv: Tensor,
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        rotary: Rotary,
        norms: HeadNorms | None,
    ) -> Tensor:
        turn = self._shared.once(batch, ("angles", id(rotary)), lambda: rotate_store.angles(rotary, batch.positions))
        return rotate_store.reference(qkv, pages, block_map, turn, norms)

    def attention(
        self, q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, *, scale: float, window: int, softcap: float
    ) -> Tensor:
        block_size = pages.keys.shape[1]
        plan = self._shared.once(
            batch,
            ("plan", id(block_map), window),
            lambda: attention.plan(batch, block_map, block_size, window, q.dtype),
        )
        return attention.reference(q, pages, plan, scale=scale, softcap=softcap)

    def logits(self, x: Tensor, weight: Matrix, softcap: float, out: Tensor | None = None) -> Tensor:
        scores = logits.capped(self.linear(x, weight).float(), softcap)
        return scores if out is None else out.copy_(scores)
