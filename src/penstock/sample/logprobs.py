"""Log-probabilities of the model's own distribution, for the rows that request them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from penstock.flow import TokenLogprobs


class Column(Protocol):
    """An array of numpy or torch."""

    def tolist(self) -> Any: ...


@dataclass(frozen=True, slots=True)
class Logprobs:
    """At each of n positions: of one token, and of the most likely ones. May be on a device until `entries`."""

    tokens: Column  # [n] integers
    logprobs: Column  # [n] float32
    ranks: Column  # [n] integers, 1: the most likely
    top_tokens: Column  # [n, k] integers
    top_logprobs: Column  # [n, k] float32, best first; of equal logits the smaller id first
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
