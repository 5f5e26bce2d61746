"""Rotary position embedding (RoPE): the frequencies of each kind of context extension (linear, llama3, YaRN, LongRoPE),
and the table of cos and sin by position. All backends read the same numbers."""

from __future__ import annotations

import math

import numpy as np

from penstock.kernels.arrays import Array
from penstock.store.spec import Rope


def rotary_table(rope: Rope, context: int) -> Array:
    """[context, 2, dim / 2] float32: cos and sin of positions 0 .. context - 1. Float32 throughout, as the models were
    trained."""
    turns = np.outer(np.arange(context, dtype=np.float32), frequencies(rope, context))
    table = np.empty((context, 2, rope.dim // 2), dtype=np.float32)
    np.cos(turns, out=table[:, 0])
    np.sin(turns, out=table[:, 1])
    if rope.attention_factor != 1.0:
        table *= np.float32(rope.attention_factor)
    return table


def frequencies(rope: Rope, context: int) -> Array:
    """Radians per position, [dim / 2] float32. LongRoPE has two sets, chosen by the longest sequence."""
    exponents = np.arange(0, rope.dim, 2, dtype=np.float32) / np.float32(rope.dim)
    powers = np.power(rope.theta, exponents, dtype=np.float64).astype(np.float32)  # rounded as in training
    plain: Array = np.float32(1.0) / powers
    match rope.kind:
        case "default":
            return plain
        case "linear":
            return _divide(plain, rope.factor)
        case "llama3":
            return _divide(plain, rope.long_factors) if rope.long_factors else _llama3(plain, rope)
        case "yarn":
            return _yarn(plain, rope)
        case "longrope":
            return _divide(plain, rope.long_factors if context > rope.original_context else rope.short_factors)


def _divide(plain: Array, factors: float | tuple[float, ...]) -> Array:
    quotients: Array = plain / np.array(factors, dtype=np.float32)
    return quotients


def _llama3(plain: Array, rope: Rope) -> Array:
    """Dimensions that turn often within the original context stay, those that hardly turn are slowed down by the
    factor, and those between get a share of both."""
    turns = plain * np.float32(rope.original_context) / np.float32(2 * math.pi)
    kept = (turns - np.float32(rope.low_freq_factor)) / np.float32(rope.high_freq_factor - rope.low_freq_factor)
    return _blend(plain, kept, rope.factor)


def _yarn(plain: Array, rope: Rope) -> Array:
    """As llama3, with the share falling linearly by dimension instead of by turns."""

    def dimension(turns: float) -> float:
        """The dimension that makes so many turns within the original context."""
        return rope.dim * math.log(rope.original_context / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    first = max(math.floor(dimension(rope.beta_fast)), 0)
    last = min(math.ceil(dimension(rope.beta_slow)), rope.dim - 1)
    slowed = (np.arange(rope.dim // 2, dtype=np.float32) - first) / np.float32(max(last - first, 0.001))
    return _blend(plain, np.float32(1.0) - slowed, rope.factor)


def _blend(plain: Array, kept: Array, factor: float) -> Array:
    kept = kept.clip(0.0, 1.0)
    blended: Array = plain * kept + _divide(plain, factor) * (np.float32(1.0) - kept)
    return blended
