"""What happens to scores over the vocabulary once they are there."""

from __future__ import annotations

from torch import Tensor


def capped(scores: Tensor, softcap: float) -> Tensor:
    return scores if softcap == 0.0 else scores.div_(softcap).tanh_().mul_(softcap)
