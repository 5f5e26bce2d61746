"""The key of a sequence's noise. `sample.reference.noise` has the whole arithmetic, from streams to Gumbel noise."""

from __future__ import annotations

GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def noise_stream(seed: int, choice: int) -> int:
    """As int64. The seed counts modulo 2^64."""
    return signed(_mix64(_mix64(seed + GOLDEN) + (choice + 1) * GOLDEN), 64)


def signed(value: int, width: int) -> int:
    """The signed integer with the low `width` bits of `value`."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


def _mix64(x: int) -> int:
    x &= _MASK64
    x ^= x >> 30
    x = x * 0xBF58476D1CE4E5B9 & _MASK64
    x ^= x >> 27
    x = x * 0x94D049BB133111EB & _MASK64
    return x ^ (x >> 31)
