"""Soft-cap of logits: softcap * tanh(logits / softcap)."""

from __future__ import annotations

from torch import Tensor


def soft_cap(scores: Tensor, softcap: float) -> Tensor:
    return scores if softcap == 0.0 else scores.div_(softcap).tanh_().mul_(softcap)
