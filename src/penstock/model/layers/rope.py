"""Rotary position embedding (RoPE): the frequencies of each kind of context extension (linear, llama3, YaRN, LongRoPE),
and the table of cos and sin by position."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.kernels.interface import Rotary
from penstock.store.spec import Rope


def rotary(rope: Rope, context: int, device: torch.device) -> Rotary:
    """The table for positions 0 .. context - 1. Float32 throughout, as the models were trained."""
    turns = torch.outer(torch.arange(context, dtype=torch.float32), frequencies(rope, context))
    table = torch.stack((turns.cos(), turns.sin()), dim=1) * rope.attention_factor
    return Rotary(table.to(device), rope.dim)


def frequencies(rope: Rope, context: int) -> Tensor:
    """Radians per position, [dim / 2]. LongRoPE has two sets, chosen by the longest sequence."""
    plain = 1.0 / rope.theta ** (torch.arange(0, rope.dim, 2, dtype=torch.float32) / rope.dim)
    match rope.kind:
        case "default":
            return plain
        case "linear":
            return plain / rope.factor
        case "llama3":
            return plain / torch.tensor(rope.long_factors) if rope.long_factors else _llama3(plain, rope)
        case "yarn":
            return _yarn(plain, rope)
        case "longrope":
            factors = rope.long_factors if context > rope.original_context else rope.short_factors
            return plain / torch.tensor(factors)


def _llama3(plain: Tensor, rope: Rope) -> Tensor:
    """Dimensions that turn often within the original context stay, those that hardly turn are slowed down by the
    factor, and those between get a share of both."""
    turns = plain * rope.original_context / (2 * math.pi)
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return _blend(plain, kept, rope.factor)


def _yarn(plain: Tensor, rope: Rope) -> Tensor:
    """As llama3, with the share falling linearly by dimension instead of by turns."""

    def dimension(turns: float) -> float:
        """The dimension that makes so many turns within the original context."""
        return rope.dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first = max(math.floor(dimension(rope.beta_fast)), 0)
    last = min(math.ceil(dimension(rope.beta_slow)), rope.dim - 1)
    slowed = (torch.arange(rope.dim // 2, dtype=torch.float32) - first) / max(last - first, 0.001)
    return _blend(plain, 1.0 - slowed, rope.factor)


def _blend(plain: Tensor, kept: Tensor, factor: float) -> Tensor:
    kept = kept.clamp(0.0, 1.0)
    return plain * kept + plain / factor * (1.0 - kept)
