"""Acceptance on held-out generations: the network drafts from each position as at serving time, greedily and on its own
features, and each draft is compared with the token the target generated there.

Start n knows the tokens up to n + 1 and the target's hidden states up to n; its drafts are the tokens n + 2, n + 3, ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from draft_training.corpus import Batch
from draft_training.eagle import ChainHead
from draft_training.layers import LayerCache
from draft_training.medusa import Medusa
from draft_training.small_model import SmallModel

Drafts = Callable[[Batch], Tensor]  # [batch, tokens, depth]: drafts of each start


@dataclass
class Acceptance:
    """Steps, and how many of them had their first 1, 2, ... drafts all right."""

    depth: int
    steps: int = 0
    right: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.right = [0] * self.depth

    def add(self, accepted: int) -> None:
        self.steps += 1
        for place in range(accepted):
            self.right[place] += 1

    @property
    def joint(self) -> list[float]:
        """Share of steps whose first i drafts are all right."""
        return [count / max(1, self.steps) for count in self.right]

    @property
    def conditional(self) -> list[float]:
        """Share of steps whose draft i is right, of those whose drafts before it are."""
        before = [self.steps, *self.right[:-1]]
        return [count / max(1, base) for count, base in zip(self.right, before, strict=True)]

    @property
    def tokens_per_step(self) -> float:
        """With the token that the target's own step gives."""
        return 1.0 + sum(self.joint)

    def facts(self) -> dict[str, float | list[float]]:
        return {
            "steps": self.steps,
            "joint": [round(share, 4) for share in self.joint],
            "conditional": [round(share, 4) for share in self.conditional],
            "tokens_per_step": round(self.tokens_per_step, 3),
        }


@torch.inference_mode()
def measure(drafts: Drafts, batches: Iterable[Batch], depth: int) -> dict[str, Acceptance]:
    """`served`: steps as an engine takes them, each after the tokens that the last one accepted. `everywhere`: a step
    from every position, which weighs easy passages more."""
    served, everywhere = Acceptance(depth), Acceptance(depth)
    for batch in batches:
        proposed = drafts(batch).cpu()
        for row in range(len(batch.tokens)):
            length, tokens = int(batch.real[row].sum()), batch.tokens[row].tolist()
            first = max(0, int(batch.generated[row].to(torch.int8).argmax()) - 1)
            accepted = {
                start: _accepted(proposed[row, start].tolist(), tokens[start + 2 : start + 2 + depth])
                for start in range(first, length - 1 - depth)
            }
            for count in accepted.values():
                everywhere.add(count)
            start = first
            while start in accepted:
                served.add(accepted[start])
                start += accepted[start] + 1
    return {"served": served, "everywhere": everywhere}


def _accepted(drafts: list[int], truth: list[int]) -> int:
    for place, (draft, token) in enumerate(zip(drafts, truth, strict=True)):
        if draft != token:
            return place
    return len(drafts)


def chain_drafts(head: ChainHead, embedding: Tensor, vocabulary: Tensor, depth: int) -> Drafts:
    """`vocabulary` [draft vocabulary]: the target's token ids."""

    def draft(batch: Batch) -> Tensor:
        feature, cache = head.features(batch.states), LayerCache()
        tokens = torch.cat((batch.tokens[:, 1:], batch.tokens[:, -1:]), dim=1)
        found = []
        for step in range(depth):
            feature = head.advance(F.embedding(tokens, embedding), feature, step, cache)
            tokens = vocabulary[head.logits(feature).argmax(-1)]
            found.append(tokens)
        return torch.stack(found, dim=-1)

    return draft


def medusa_drafts(heads: Medusa, vocabulary: Tensor, depth: int) -> Drafts:
    def draft(batch: Batch) -> Tensor:
        states = batch.states[:, :, 0]
        found = [vocabulary[head(states).argmax(-1)] for head in heads.heads]
        return torch.stack(found[:depth], dim=-1)

    return draft


def small_model_drafts(model: SmallModel, embedding: Tensor, vocabulary: Tensor, depth: int) -> Drafts:
    def draft(batch: Batch) -> Tensor:
        caches = [LayerCache() for _ in model.layers]
        tokens, found = batch.tokens, []
        for step in range(depth):
            hidden = model.advance(F.embedding(tokens, embedding), step, caches)
            tokens = vocabulary[model.logits(hidden).argmax(-1)]
            found.append(tokens)
        drafts = torch.stack(found, dim=-1)
        return torch.cat((drafts[:, 1:], drafts[:, -1:]), dim=1)  # start n: after the token n + 1

    return draft
