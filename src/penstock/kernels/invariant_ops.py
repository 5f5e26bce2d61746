"""The kernels of `CudaOperations` whose results for a token do not depend on what else a step computes: bit by bit the
same for all numbers of rows, prompts in any chunks, and prefixes from the cache.

Norms, rotation, gates and draws work on one token or row in any case. What remains are products and attention.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from penstock.kernels.cuda.invariant_decode import invariant_decode
from penstock.kernels.cuda.invariant_gemm import invariant_gemm
from penstock.kernels.cuda.invariant_prefill import aligned_tiles, invariant_prefill
from penstock.kernels.cuda.invariant_splits import plan_invariant
from penstock.kernels.cuda.prefill_attention import SHAPES
from penstock.kernels.interface import Batch, BlockMap, Linear, Norm, Pages, UnreducedProduct
from penstock.kernels.per_batch import PerBatch


class InvariantKernels:
    def __init__(self, norm: Callable[[Tensor, Norm], Tensor]) -> None:
        self._norm = norm
        self._shared = PerBatch()

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None) -> Tensor:
        weight, bias, norm, activation, reduce, _ = linear  # no row has an adapter: engines on GPUs take none
        if reduce:
            raise UnreducedProduct
        x = x if norm is None else self._norm(x, norm)
        if activation is None:
            return invariant_gemm(x, weight.dense, bias, onto=onto)
        y = invariant_gemm(x, weight.dense, bias, activation=activation)
        return y if onto is None else onto.add_(y)

    def logits(self, x: Tensor, weight: Tensor, out: Tensor) -> None:
        """Into `out`, float32, without soft-cap."""
        invariant_gemm(x, weight, out=out)

    def attention(
        self,
        q: Tensor,
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        out: Tensor,
        *,
        scale: float,
        window: int,
        softcap: float,
    ) -> None:
        single, tables = batch.num_single, block_map.tables
        if single:
            first, lengths, kv_heads = q[:single], batch.lengths, pages.keys.shape[2]
            plan = self._shared.once(
                batch, ("plan", window), lambda: plan_invariant(first, kv_heads, lengths, batch.runs, window)
            )
            invariant_decode(first, pages, tables, lengths, plan, out, scale=scale, window=window, softcap=softcap)
        if single < batch.num_rows:
            size = SHAPES[q.element_size()].queries
            rows = range(single, batch.num_rows)
            tiles = self._shared.once(batch, "tiles", lambda: aligned_tiles(batch, rows, size))
            invariant_prefill(q, pages, tables, batch, tiles, out, scale=scale, window=window, softcap=softcap)
