"""The operations on CUDA: Triton kernels; products are skinny GEMMs for a few rows, cuBLAS's for many, and with coded
weights those of `coded_linear`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.kernels.cuda import (
    coded_linear,
    decode_attention,
    embed,
    gate,
    prefill_attention,
    prefill_cudnn,
    prefill_split_kv,
    rotate_store,
    skinny_gemm,
    split_kv,
)
from penstock.kernels.cuda import norm as norm_
from penstock.kernels.interface import Batch, BlockMap, HeadNorms, Linear, Norm, Pages, Rotary, UnreducedProduct
from penstock.kernels.per_batch import PerBatch
from penstock.kernels.reference import linear as linear_
from penstock.kernels.reference import logits
from penstock.kernels.torch_internals import float32_product
from penstock.kernels.weight import Form, Weight


class PrefillPlan(NamedTuple):
    """Which kernel attends to which rows of several tokens."""

    cudnn: tuple[prefill_cudnn.Chunk, ...]  # long ones
    split_kv: Tensor | None  # short ones, see `prefill_attention.query_tiles`
    tiled: Tensor | None  # all others, likewise


class CudaOperations:
    """Implements `interface.Operations`."""

    def __init__(self) -> None:
        self._shared = PerBatch()

    def embed(self, tokens: Tensor, table: Weight, scale: float) -> Tensor:
        return embed.embed(tokens, table.dense, scale)

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        return norm_.norm(x, norm, onto)

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        weight, bias, norm, activation, reduce, _ = linear  # no row has an adapter: engines on GPUs take none
        if reduce:
            raise UnreducedProduct
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
            first, lengths, kv_heads = q[:single], batch.lengths, pages.keys.shape[2]
            splits = self._shared.once(
                batch, ("splits", window), lambda: split_kv.plan_splits(first, kv_heads, lengths, batch.runs, window)
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
            return logits.soft_cap(out, softcap)
        matrix = weight.dense
        # Accumulated in float32 anyway: no need to round and widen again.
        if skinny_gemm.suits(x, matrix):
            skinny_gemm.skinny_gemm(x, matrix, out=out)
        elif x.dtype == torch.float32:
            torch.mm(x, matrix.t(), out=out)
        else:
            float32_product()(x, matrix.t(), out)
        return logits.soft_cap(out, softcap)


def _plan_prefill(q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, is_plain: bool) -> PrefillPlan:
    """`is_plain`: there is neither window nor soft-cap."""
    rows = range(batch.num_single, batch.num_rows)
    has_cudnn = is_plain and prefill_cudnn.available(q)
    long = [row for row in rows if has_cudnn and prefill_cudnn.suits(batch, row, q.shape[1])]
    rest = [row for row in rows if row not in long]
    counts = [batch.host_starts[row + 1] - batch.host_starts[row] for row in rest]
    short = [row for row, count in zip(rest, counts, strict=True) if count <= prefill_split_kv.LONGEST]
    others = [row for row, count in zip(rest, counts, strict=True) if count > prefill_split_kv.LONGEST]
    block_size, size = pages.keys.shape[1], prefill_attention.SHAPES[q.element_size()].queries
    return PrefillPlan(
        tuple(prefill_cudnn.chunk(batch, block_map, block_size, row) for row in long),
        prefill_attention.query_tiles(batch, short, prefill_split_kv.TOKENS) if short else None,
        prefill_attention.query_tiles(batch, others, size) if others else None,
    )
