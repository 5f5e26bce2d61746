"""The operations of one rank of several (tensor parallelism), over those of its device.

A rank has some heads of attention, some columns of the MLP and some tokens of the vocabulary. Its products with what
was split by columns are partial sums, which are added up over the ranks; so are the vectors of embedded tokens, which
are zeros where a token is in another rank's part. Logits are gathered on rank 0, which alone draws tokens, and hands
out those of the next step. All else needs no other rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from penstock.kernels.interface import (
    Activation,
    Batch,
    BlockMap,
    HeadNorms,
    Linear,
    Norm,
    Operations,
    Pages,
    Rotary,
)
from penstock.kernels.reference import gate
from penstock.kernels.weight import Weight


class Ranks(Protocol):
    """The ranks of a group, as one of them sees it. All of them call the same methods in the same order."""

    rank: int
    world: int

    def hand_out(self, values: Tensor) -> None:
        """Replace it with rank 0's."""

    def add_up(self, partial: Tensor) -> None:
        """Replace it with the sum over all ranks."""

    def gather(self, part: Tensor) -> list[Tensor] | None:
        """Every rank's part, on rank 0; None on the others. Parts have the same shape and type."""

    def least(self, numbers: Sequence[int]) -> list[int]:
        """Of each of them the smallest that a rank has. Waits for all ranks."""

    def close(self) -> None:
        """Leave the group."""


class RankOperations:
    """Implements `interface.Operations`."""

    def __init__(self, own: Operations, ranks: Ranks, vocabulary: Sequence[tuple[int, int]]) -> None:
        """`own`: those of the device. `vocabulary` [ranks]: the first token of each one's part, and where it ends."""
        self.own, self._ranks = own, ranks
        self._sizes = [end - begin for begin, end in vocabulary]
        self._first = vocabulary[ranks.rank][0]

    def embed(self, tokens: Tensor, table: Weight, scale: float) -> Tensor:
        """`tokens` become those of rank 0, which has drawn or drafted some that no other rank knows."""
        self._ranks.hand_out(tokens)
        vectors = self.embed_own(tokens, self._first, table, scale)
        self._ranks.add_up(vectors)
        return vectors

    def embed_own(self, tokens: Tensor, first: int, table: Weight, scale: float) -> Tensor:
        """Zeros for tokens that are not in this rank's part, which begins with `first`."""
        own = tokens - first
        is_own = (own >= 0) & (own < table.shape[0])
        vectors = self.own.embed(own.clamp_(0, table.shape[0] - 1), table, scale)
        return vectors.masked_fill_(~is_own[:, None], 0.0)

    def norm(self, x: Tensor, norm: Norm, onto: Tensor | None = None) -> Tensor:
        return self.own.norm(x, norm, onto)

    def linear(self, x: Tensor, linear: Linear, onto: Tensor | None = None) -> Tensor:
        weight, bias, norm, activation, reduce, delta = linear
        if not reduce:
            return self.own.linear(x, linear, onto)
        y = self.own.linear(x, Linear(weight, norm=norm, delta=delta))  # of the delta, too, it is a partial sum
        self._ranks.add_up(y)
        return self.finish(y, bias, activation, onto)

    def finish(self, y: Tensor, bias: Tensor | None, activation: Activation | None, onto: Tensor | None) -> Tensor:
        """What comes behind the sum over ranks."""
        if bias is not None:
            y += bias
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
        return self.own.rotate_store(qkv, pages, block_map, batch, rotary, norms)

    def attention(
        self, q: Tensor, pages: Pages, block_map: BlockMap, batch: Batch, *, scale: float, window: int, softcap: float
    ) -> Tensor:
        return self.own.attention(q, pages, block_map, batch, scale=scale, window=window, softcap=softcap)

    def logits(self, x: Tensor, weight: Weight, softcap: float, out: Tensor | None = None) -> Tensor:
        """Those of all tokens on rank 0, those of its own tokens on any other."""
        own = self.own.logits(x, weight, softcap)
        width = max(self._sizes)
        part = own if own.shape[1] == width else torch.nn.functional.pad(own, (0, width - own.shape[1]))
        parts = self._ranks.gather(part.contiguous())
        if parts is None:
            return own
        pieces = [piece[:, :size] for piece, size in zip(parts, self._sizes, strict=True)]
        return torch.cat(pieces, dim=1, out=out) if out is not None else torch.cat(pieces, dim=1)

    def close(self) -> None:
        """Leave the group: there will be no more steps."""
        self._ranks.close()
