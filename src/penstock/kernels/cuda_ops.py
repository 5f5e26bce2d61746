"""The operations on CUDA: Triton kernels around the products, which are cuBLAS's but for a few rows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.kernels.cpu.packed import plain
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
from penstock.kernels.interface import Activation, Batch, BlockMap, HeadNorms, Matrix, Norm, Pages, Rotary
from penstock.kernels.per_batch import PerBatch
from penstock.kernels.reference import linear, logits


class Chunks(NamedTuple):
    """How the rows of several tokens are attended to."""

    long: tuple[prefill_cudnn.Chunk, ...]
    short: Tensor | None  # tiles, see `prefill.tiles`
    tiles: Tensor | None  # of all others


class CudaOperations:
    """Implements `interface.Operations`."""

    def __init__(self) -> None:
        self._shared = PerBatch()

    def embed(self, tokens: Tensor, table: Matrix, scale: float) -> Tensor:
        return embed.embed(tokens, plain(table), scale)

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        return norm_.norm(x, norm, onto)

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
        x, norm = self._normed(x, norm, weight)
        if skinny_gemm.suits(x, weight):
            return skinny_gemm.product(x, weight, bias, norm=norm, onto=onto)
        if onto is not None and bias is None:
            return onto.addmm_(x, weight.t())
        y = linear.reference(x, weight, bias)
        return y if onto is None else onto.add_(y)

    def gated(
        self, x: Tensor, weight: Matrix, bias: Tensor | None, activation: Activation, *, norm: Norm | None = None
    ) -> Tensor:
        weight = plain(weight)
        x, norm = self._normed(x, norm, weight)
        if skinny_gemm.suits(x, weight):
            return skinny_gemm.product(x, weight, bias, norm=norm, activation=activation)
        return gate.gate(linear.reference(x, weight, bias), activation)

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

    def logits(self, x: Tensor, weight: Matrix, softcap: float, out: Tensor | None = None) -> Tensor:
        weight = plain(weight)
        if out is None:
            out = torch.empty(x.shape[0], weight.shape[0], dtype=torch.float32, device=x.device)
        # Accumulated in float32 anyway: no need to round and widen again.
        if skinny_gemm.suits(x, weight):
            skinny_gemm.product(x, weight, out=out)
        elif x.dtype == torch.float32:
            torch.mm(x, weight.t(), out=out)
        else:
            torch.ops.aten.mm.dtype_out(x, weight.t(), torch.float32, out=out)
        return logits.capped(out, softcap)

    def _normed(self, x: Tensor, norm: Norm | None, weight: Tensor) -> tuple[Tensor, Norm | None]:
        """x and the norm, where a product of our own makes it on the way; else the norm of x."""
        if norm is None or skinny_gemm.takes_norm(x, weight):
            return x, norm
        return self.norm(x, norm), None


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
