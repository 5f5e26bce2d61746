"""The operations in plain torch, on any device, over weights of any form."""

from __future__ import annotations

from torch import Tensor

from penstock.kernels.interface import Batch, BlockMap, HeadNorms, Linear, Norm, Pages, Rotary, UnreducedProduct
from penstock.kernels.low_rank import HEAD
from penstock.kernels.per_batch import PerBatch
from penstock.kernels.reference import attention, embed, gate, logits, low_rank, rotate_store
from penstock.kernels.reference import linear as linear_
from penstock.kernels.reference import norm as norm_
from penstock.kernels.reference.dense import to_dense
from penstock.kernels.weight import Form, Weight


class TorchOperations:
    """Implements `interface.Operations`."""

    def __init__(self) -> None:
        self._shared = PerBatch()
        self.adapters: low_rank.AdaptedTokens | None = None  # of the step under way; None: no row has one

    def embed(self, tokens: Tensor, table: Weight, scale: float) -> Tensor:
        x = embed.reference(tokens, to_dense(table), scale)
        if self.adapters is not None:
            low_rank.embedding_reference(x, tokens, scale, self.adapters)
        return x

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        y = norm_.reference(x, norm)
        return y if onto is None else onto.add_(y)

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        weight, bias, norm, activation, reduce, delta = linear
        if reduce:
            raise UnreducedProduct
        x = x if norm is None else self.norm(x, norm)
        y = _product(x, weight, bias)
        if delta is not None and self.adapters is not None:
            low_rank.reference(y, x, delta, self.adapters)
        if activation is not None:
            y = gate.reference(y, activation)
        return y if onto is None else onto.add_(y)

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

    def logits(self, x: Tensor, weight: Weight, softcap: float, out: Tensor | None = None) -> Tensor:
        scores = logits.soft_cap(self.linear(x, Linear(weight, delta=HEAD)).float(), softcap)
        return scores if out is None else out.copy_(scores)


def _product(x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
    if weight.form is Form.ONEDNN:
        return linear_.onednn(x, weight.onednn, bias)
    return linear_.reference(x, to_dense(weight), bias)
