"""The operations on CUDA: Triton kernels around the products, which are cuBLAS's but for a few rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.kernels.cuda import (
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
from penstock.kernels.interface import Batch, BlockMap, HeadNorms, Linear, Norm, Pages, Rotary
from penstock.kernels.per_batch import PerBatch
from penstock.kernels.reference import linear as linear_
from penstock.kernels.reference import logits
from penstock.kernels.weight import Weight


class Chunks(NamedTuple):
    """How the rows of several tokens are attended to."""

    long: tuple[prefill_cudnn.Chunk, ...]
    short: Tensor | None  # tiles, see `prefill.tiles`
    tiles: Tensor | None  # of all others


class CudaOperations:
    """Implements `interface.Operations`."""

    def __init__(self) -> None:
        self._shared = PerBatch()

    def embed(self, tokens: Tensor, table: Weight, scale: float) -> Tensor:
        return embed.embed(tokens, table.dense, scale)

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        return norm_.norm(x, norm, onto)

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        weight, bias, norm, activation = linear
        matrix = weight.dense
        if norm is not None and not skinny_gemm.takes_norm(x, matrix):
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
            chunks = Chunks((), None, None)
        else:
            whole = window == 0 and softcap == 0.0
            key = (id(block_map), whole)
            chunks = self._shared.once(batch, key, lambda: _plan(q, pages, block_map, batch, whole))
        if out is None:
            if len(chunks.long) == batch.num_rows == 1:
                return prefill_cudnn.attend(q, pages, chunks.long[0], scale)
            out = torch.empty(q.shape[0], q.shape[1] * q.shape[2], dtype=q.dtype, device=q.device)
        single, tables = batch.num_single, block_map.tables
        if single:
            first, lengths, kv_heads = q[:single], batch.lengths, pages.keys.shape[2]
            pieces = self._shared.once(
                batch, ("cut", window), lambda: split_kv.cut(first, kv_heads, lengths, batch.runs, window)
            )
            decode_attention.decode(
                first, pages, tables, lengths, pieces, out, scale=scale, window=window, softcap=softcap
            )
        for chunk in chunks.long:
            out[chunk.start : chunk.end] = prefill_cudnn.attend(q, pages, chunk, scale)
        for attend, tiles in (
            (prefill_split_kv.short_prefill, chunks.short),
            (prefill_attention.prefill, chunks.tiles),
        ):
            if tiles is not None:
                attend(q, pages, tables, batch, tiles, out, scale=scale, window=window, softcap=softcap)
        return out

    def logits(self, x: Tensor, weight: Weight, softcap: float, out: Tensor | None = None) -> Tensor:
        matrix = weight.dense
        if out is None:
            out = torch.empty(x.shape[0], matrix.shape[0], dtype=torch.float32, device=x.device)
        # Accumulated in float32 anyway: no need to round and widen again.
        if skinny_gemm.suits(x, matrix):
            skinny_gemm.skinny_gemm(x, matrix, out=out)
        elif x.dtype == torch.float32:
            torch.mm(x, matrix.t(), out=out)
        else:
            torch.ops.aten.mm.dtype_out(x, matrix.t(), torch.float32, out=out)
        return logits.capped(out, softcap)


def _plan(q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, whole: bool) -> Chunks:
    """`whole`: there is neither window nor soft-cap."""
    rows = range(batch.num_single, batch.num_rows)
    may = whole and prefill_cudnn.available(q)
    taken = [row for row in rows if may and prefill_cudnn.suits(batch, row, q.shape[1])]
    rest = [row for row in rows if row not in taken]
    counts = [batch.host_starts[row + 1] - batch.host_starts[row] for row in rest]
    short = [row for row, count in zip(rest, counts, strict=True) if count <= prefill_split_kv.LONGEST]
    others = [row for row, count in zip(rest, counts, strict=True) if count > prefill_split_kv.LONGEST]
    block_size, size = pages.keys.shape[1], prefill_attention.SHAPES[q.element_size()].queries
    return Chunks(
        tuple(prefill_cudnn.chunk(batch, block_map, block_size, row) for row in taken),
        prefill_attention.tiles(batch, short, prefill_split_kv.TOKENS) if short else None,
        prefill_attention.tiles(batch, others, size) if others else None,
    )
