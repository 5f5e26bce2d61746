"""Low-rank deltas of adapters, added to the rows of a product that have one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.kernels.low_rank import EMBEDDING, LowRank


class Part(NamedTuple):
    """Of one projection of a product."""

    a: Tensor  # [rank, in]
    b: Tensor  # [out, rank], with the scale
    offset: int  # of the projection among the outputs


Parts = Mapping[LowRank, Sequence[Part]]  # of an adapter


@dataclass(frozen=True, slots=True)
class AdaptedTokens:
    """The adapters of a step's tokens."""

    tokens: list[tuple[Parts, Tensor]]  # the packed tokens, int64, of each adapter
    wanted: list[tuple[Parts, Tensor]]  # the same as places in `Batch.logits_indices`
    num_tokens: int

    def of(self, x: Tensor) -> list[tuple[Parts, Tensor]]:
        """By rows of x, which has all tokens or the wanted ones. If these are equally many, they are the same."""
        return self.tokens if len(x) == self.num_tokens else self.wanted


def reference(y: Tensor, x: Tensor, delta: LowRank, adapters: AdaptedTokens) -> None:
    """Adds them to y, the product with x."""
    for parts, rows in adapters.of(x):
        for a, b, offset in parts.get(delta, ()):
            added = (x[rows] @ a.t()) @ b.t()
            y[:, offset : offset + len(b)].index_add_(0, rows, added)


def embedding_reference(y: Tensor, tokens: Tensor, scale: float, adapters: AdaptedTokens) -> None:
    """Adds them to y, the embedded tokens."""
    for parts, rows in adapters.tokens:
        for a, b, _ in parts.get(EMBEDDING, ()):
            y.index_add_(0, rows, (a.t()[tokens[rows]] @ b.t()) * scale)


def adapted_tokens(owners: Sequence[Parts | None], wanted: Sequence[int] | None = None) -> AdaptedTokens | None:
    """Of packed tokens with these adapters; None: no token has one. `wanted`: those that are computed beyond the last
    attention; None: all."""
    if not any(owners):
        return None
    few = owners if wanted is None else [owners[token] for token in wanted]
    return AdaptedTokens(_groups(owners), _groups(few), len(owners))


def _groups(owners: Sequence[Parts | None]) -> list[tuple[Parts, Tensor]]:
    found: dict[int, tuple[Parts, list[int]]] = {}
    for place, owner in enumerate(owners):
        if owner is not None:
            found.setdefault(id(owner), (owner, []))[1].append(place)
    return [(owner, torch.tensor(places)) for owner, places in found.values()]
