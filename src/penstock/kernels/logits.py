"""Hidden states to scores over the vocabulary."""

from __future__ import annotations

from torch import Tensor

from penstock.kernels import linear


def reference(x: Tensor, rows: Tensor, weight: Tensor, softcap: float) -> Tensor:
    return capped(linear.reference(x[rows], weight).float(), softcap)


def capped(scores: Tensor, softcap: float) -> Tensor:
    return scores if softcap == 0.0 else scores.div_(softcap).tanh_().mul_(softcap)
