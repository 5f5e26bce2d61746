"""The operations on CUDA: Triton kernels; products are skinny GEMMs for a few rows, cuBLAS's for many, and with coded
weights those of `coded_linear`."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from penstock.kernels.cuda import (
    coded_linear,
    decode_attention,
    embed,
    gate,
    kv_codes,
    kv_store,
    low_rank,
    prefill_attention,
    prefill_cudnn,
    prefill_split_kv,
    rotate_store,
    skinny_gemm,
)
from penstock.kernels.cuda import norm as norm_
from penstock.kernels.interface import Batch, BlockMap, HeadNorms, Linear, Norm, Pages, Rotary, UnreducedProduct
from penstock.kernels.low_rank import HEAD, LowRank
from penstock.kernels.per_batch import PerBatch
from penstock.kernels.reference import linear as linear_
from penstock.kernels.reference import logits
from penstock.kernels.torch_internals import float32_product
from penstock.kernels.weight import Form, Weight

if TYPE_CHECKING:
    from penstock.kernels.invariant_ops import InvariantKernels


class PrefillPlan(NamedTuple):
    """Which kernel attends to which rows of several tokens."""

    cudnn: tuple[prefill_cudnn.Chunk, ...]  # long ones
    split_kv: Tensor | None  # short ones, see `prefill_attention.query_tiles`
    tiled: Tensor | None  # all others, likewise


class CudaOperations:
    """Implements `interface.Operations`."""

    def __init__(self, deterministic: bool = False) -> None:
        """`deterministic`: results for a token depend neither on its neighbours nor on how its sequence is computed."""
        self._shared = PerBatch()
        self.deltas: low_rank.StepDeltas | None = None  # of the step under way; None: no row has an adapter
        self._invariant: InvariantKernels | None = None
        if deterministic:  # imported only then: their modules take a twentieth of a second
            from penstock.kernels.invariant_ops import InvariantKernels

            self._invariant = InvariantKernels(self.norm)

    def embed(self, tokens: Tensor, table: Weight, scale: float) -> Tensor:
        x = embed.embed(tokens, table.dense, scale)
        if self.deltas is not None:
            low_rank.embed(x, tokens, scale, self.deltas)
        return x

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        return norm_.norm(x, norm, onto)

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        if self._invariant is not None:
            return self._invariant.linear(x, linear, onto)
        weight, bias, norm, activation, reduce, delta = linear
        if reduce:
            raise UnreducedProduct
        if delta is not None and self.deltas is not None:
            return self._adapted(x, linear, onto, delta, self.deltas)
        if weight.form is Form.CODED:
            return coded_linear.coded_linear(x, weight.coded, bias, norm=norm, onto=onto, activation=activation)
        matrix = weight.dense
        if norm is not None and not skinny_gemm.fuses_norm(x, matrix):
            x, norm = self.norm(x, norm), None
        if skinny_gemm.suits(x, matrix):
            return skinny_gemm.skinny_gemm(x, matrix, bias, norm=norm, onto=onto, activation=activation)
        if onto is not None and bias is None and activation is None:
            return onto.addmm_(x, matrix.t())
        y = linear_.reference(x, matrix, bias)
        if activation is not None:
            y = gate.gate(y, activation)
        return y if onto is None else onto.add_(y)

    def _adapted(
        self, x: Tensor, linear: Linear, onto: Tensor | None, delta: LowRank, deltas: low_rank.StepDeltas
    ) -> Tensor:
        """The product between the launches that compute its delta. What comes behind the delta is done there."""
        gated = linear.gate is not None
        x, shrunk = low_rank.shrink(x, linear.norm, delta, deltas)
        y = self.linear(x, linear._replace(norm=None, gate=None, delta=None), None if gated else onto)
        return low_rank.expand(shrunk, y, delta, deltas, linear.gate, onto if gated else None)

    def rotate_store(
        self,
        qkv: Tensor,
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        rotary: Rotary,
        norms: HeadNorms | None,
    ) -> Tensor:
        return rotate_store.rotate_store(qkv, pages, block_map, batch.positions, rotary, norms)

    def attention(
        self,
        q: Tensor,
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        *,
        scale: float,
        window: int,
        softcap: float,
        out: Tensor | None = None,
    ) -> Tensor:
        if self._invariant is not None:
            if out is None:
                out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
            self._invariant.attention(q, pages, block_map, batch, out, scale=scale, window=window, softcap=softcap)
            return out
        attended = self._attend(q, pages, block_map, batch, scale, window, softcap, out)
        if pages.values.dtype == kv_codes.KIND_DTYPES["int4"]:
            kv_store.transform_heads(attended, q.shape[2])
        return attended

    def _attend(
        self,
        q: Tensor,
        pages: Pages,
        block_map: BlockMap,
        batch: Batch,
        scale: float,
        window: int,
        softcap: float,
        out: Tensor | None,
    ) -> Tensor:
        """Over values as they are stored."""
        if batch.num_single == batch.num_rows:
            prefill = PrefillPlan((), None, None)
        else:
            is_plain = window == 0 and softcap == 0.0
            key = (id(block_map), is_plain)
            prefill = self._shared.once(batch, key, lambda: _plan_prefill(q, pages, block_map, batch, is_plain))
        if out is None:
            if len(prefill.cudnn) == batch.num_rows == 1:
                return prefill_cudnn.attend(q, pages, prefill.cudnn[0], scale)
            out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
        single, tables = batch.num_single, block_map.tables
        if single:
            first, lengths = q[:single], batch.lengths
            splits = self._shared.once(
                batch, ("splits", window), lambda: decode_attention.plan(first, pages, lengths, batch.runs, window)
            )
            decode_attention.decode_attention(
                first, pages, tables, lengths, splits, out, scale=scale, window=window, softcap=softcap
            )
        for chunk in prefill.cudnn:
            out[chunk.start : chunk.end] = prefill_cudnn.attend(q, pages, chunk, scale)
        for attend, tiles in (
            (prefill_split_kv.prefill_split_kv, prefill.split_kv),
            (prefill_attention.prefill_attention, prefill.tiled),
        ):
            if tiles is not None:
                attend(q, pages, tables, batch, tiles, out, scale=scale, window=window, softcap=softcap)
        return out

    def logits(self, x: Tensor, weight: Weight, softcap: float, out: Tensor | None = None) -> Tensor:
        if out is None:
            out = torch.empty(x.shape[0], weight.shape[0], dtype=torch.float32, device=x.device)
        if weight.form is Form.CODED:
            coded_linear.coded_logits(x, weight.coded, out)
        else:
            self._dense_logits(x, weight.dense, out)
        if self.deltas is not None:
            _, shrunk = low_rank.shrink(x, None, HEAD, self.deltas)
            low_rank.expand(shrunk, out, HEAD, self.deltas)
        return logits.soft_cap(out, softcap)

    def _dense_logits(self, x: Tensor, matrix: Tensor, out: Tensor) -> None:
        """Accumulated in float32 anyway: no need to round and widen again."""
        if self._invariant is not None:
            self._invariant.logits(x, matrix, out)
        elif skinny_gemm.suits(x, matrix):
            skinny_gemm.skinny_gemm(x, matrix, out=out)
        elif x.dtype == torch.float32:
            torch.mm(x, matrix.t(), out=out)
        else:
            float32_product()(x, matrix.t(), out)


def _plan_prefill(q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, is_plain: bool) -> PrefillPlan:
    """`is_plain`: there is neither window nor soft-cap."""
    rows = range(batch.num_single, batch.num_rows)
    has_cudnn = is_plain and prefill_cudnn.available(q)
    long = [row for row in rows if has_cudnn and prefill_cudnn.suits(batch, row, q.shape[1])]
    rest = [row for row in rows if row not in long]
    counts = [batch.host_starts[row + 1] - batch.host_starts[row] for row in rest]
    short = [row for row, count in zip(rest, counts, strict=True) if count <= prefill_split_kv.LONGEST]
    others = [row for row, count in zip(rest, counts, strict=True) if count > prefill_split_kv.LONGEST]
    block_size, size = pages.keys.shape[1], prefill_attention.chosen_shape(q, pages).queries
    return PrefillPlan(
        tuple(prefill_cudnn.chunk(batch, block_map, block_size, row) for row in long),
        prefill_attention.query_tiles(batch, short, prefill_split_kv.TOKENS) if short else None,
        prefill_attention.query_tiles(batch, others, size) if others else None,
    )
