"""Medusa heads in numpy: what they compute."""

from __future__ import annotations

import numpy as np

from penstock.kernels.arrays import Array
from penstock.speculate.heads.chain import silu
from penstock.speculate.heads.spec import MedusaSpec
from penstock.speculate.heads.weights import MedusaWeights


class MedusaHeads:
    def __init__(self, spec: MedusaSpec, weights: MedusaWeights, head: Array) -> None:
        """`head` [vocab, hidden] is the target's, used by heads that have none of their own."""
        self.spec, self._weights = spec, weights
        shared = head if weights.token_ids is None else np.ascontiguousarray(head[weights.token_ids])
        self._heads = tuple(shared if own is None else own for own in weights.heads)

    def draft(self, hidden: Array, most: int) -> list[int]:
        """The likeliest tokens after the one that the target samples from `hidden` [hidden], a state after its final
        norm."""
        ids = self._weights.token_ids
        places = [int(self.logits(hidden, place).argmax()) for place in range(min(most, self.spec.num_heads))]
        return places if ids is None else [int(ids[place]) for place in places]

    def logits(self, hidden: Array, place: int) -> Array:
        """[..., hidden] -> [..., draft vocab], of one head."""
        x = hidden
        for block in self._weights.blocks[place]:
            y = x @ block.weight.T
            x = x + silu(y if block.bias is None else y + block.bias)
        scores: Array = x @ self._heads[place].T
        return scores
