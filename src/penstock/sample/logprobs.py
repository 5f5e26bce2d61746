"""Log-probabilities of the model's own distribution, for the rows that request them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.flow import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Logprobs:
    """At each of n positions: of one token, and of the most likely ones. On the device until `entries`."""

    tokens: Tensor  # [n] int64
    logprobs: Tensor  # [n] float32
    ranks: Tensor  # [n] int64, 1: the most likely
    top_tokens: Tensor  # [n, k] int64
    top_logprobs: Tensor  # [n, k] float32, best first
    counts: list[int]  # [n]: how many of the k each position requests

    def entries(self) -> list[TokenLogprobs]:
        """Waits for the device."""
        columns = (self.tokens, self.logprobs, self.ranks, self.top_tokens, self.top_logprobs)
        return [
            TokenLogprobs(token, logprob, rank, list(zip(top_tokens[:count], top_logprobs, strict=False)))
            for token, logprob, rank, top_tokens, top_logprobs, count in zip(
                *(column.tolist() for column in columns), self.counts, strict=True
            )
        ]


def measure(logits: Tensor, tokens: Tensor, counts: list[int]) -> Logprobs:
    """logits [n, vocab] float32, not changed; tokens [n] int64; and the `counts[i]` most likely of row i."""
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logits.gather(1, tokens[:, None])
    top = logprobs.topk(min(max(counts), logits.shape[1]), dim=-1)
    return Logprobs(
        tokens=tokens,
        logprobs=logprobs.gather(1, tokens[:, None])[:, 0],
        ranks=(logits > chosen).sum(dim=-1) + 1,
        top_tokens=top.indices,
        top_logprobs=top.values,
        counts=counts,
    )
