"""Hidden states as torch tensors. Implements `HiddenStates`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.sample.logprobs import Logprobs
from penstock.sample.masks import Floats
from penstock.sample.reference.logprobs import measure


class TorchHiddenStates(NamedTuple):
    hidden: Tensor  # [tokens, hidden]
    slot_tokens: Tensor  # [slots, context]: the sequences
    logits: Callable[[int, int], Tensor]  # of a range of the tokens, [n, vocab]

    def total(self, first: int, end: int) -> Tensor:
        """In float64, which holds sums of 16-bit numbers exactly unless their sizes are very far apart: neither torch's
        order nor the chunks of a prompt show in it."""
        return self.hidden[first:end].sum(0, dtype=torch.float64)

    def logprobs(self, first: int, end: int, slot: int, position: int, count: int) -> Logprobs:
        following = self.slot_tokens[slot, position + 1 : position + 1 + end - first].to(torch.int64)
        return measure(self.logits(first, end), following, [count] * (end - first))

    @staticmethod
    def read(vectors: list[Tensor]) -> Floats:
        return torch.stack(vectors).cpu().numpy()
