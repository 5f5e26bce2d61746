"""The operations of one rank of several on CUDA: those of `rank_ops`, with kernels for what is around the sums."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from penstock.kernels.cuda import rank_parts
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import Activation
from penstock.kernels.rank_ops import RankOperations, Ranks
from penstock.kernels.weight import Form, Weight


class CudaRankOperations(RankOperations):
    """Over `cuda_ops.CudaOperations`."""

    def __init__(self, own: CudaOperations, ranks: Ranks, vocabulary: Sequence[tuple[int, int]]) -> None:
        super().__init__(own, ranks, vocabulary)
        self._cuda = own

    def embed_own(self, tokens: Tensor, first: int, table: Weight, scale: float) -> Tensor:
        if table.form is not Form.DENSE or self._cuda.deltas is not None:
            return super().embed_own(tokens, first, table, scale)
        return rank_parts.embed(tokens, table.dense, first, scale)

    def finish(self, y: Tensor, bias: Tensor | None, activation: Activation | None, onto: Tensor | None) -> Tensor:
        if onto is None or activation is not None:
            return super().finish(y, bias, activation, onto)
        return rank_parts.add(y, bias, onto)
