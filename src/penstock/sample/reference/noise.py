"""Gumbel noise out of a counter: a pure function of (seed, choice, position, token id).

Exact arithmetic, for implementations elsewhere. All integers are unsigned and wrap, `>>` shifts in zeros:

    mix64(x):  x ^= x >> 30; x *= 0xBF58476D1CE4E5B9; x ^= x >> 27; x *= 0x94D049BB133111EB; x ^= x >> 31
    mix32(x):  x ^= x >> 16; x *= 0x85EBCA6B; x ^= x >> 13; x *= 0xC2B2AE35; x ^= x >> 16

    stream = mix64(mix64(seed + G) + (choice + 1) * G)          64 bits, once per sequence; G = 0x9E3779B97F4A7C15
    key    = mix64(stream + position * G)                       64 bits, once per row and step
    h      = mix32(token)                                       32 bits, once per vocabulary
    h      = (h ^ low half of key) * 0x2C1B3C6D + high half of key
    h     ^= h >> 16;  h *= 0x297A2D39;  h ^= h >> 15;  h *= 0x85EBCA6B
    k      = the top 23 bits of h read as a two's complement number, -2^22 <= k < 2^22
    u      = (k + 2^22 + 0.5) / 2^23                            exact in float32, never 0 or 1
    noise  = -log(-log(u))

Torch has no logical shift for int32 and int64, hence the masks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.sample.noise_stream import GOLDEN, signed


def row_keys(streams: Tensor, positions: Tensor) -> Tensor:
    """[rows] int64 each -> [rows] int64"""
    x = streams + positions * signed(GOLDEN, 64)
    x ^= _shift(x, 30, 64)
    x *= signed(0xBF58476D1CE4E5B9, 64)
    x ^= _shift(x, 27, 64)
    x *= signed(0x94D049BB133111EB, 64)
    return x.bitwise_xor_(_shift(x, 31, 64))


def token_hashes(vocab_size: int, device: torch.device) -> Tensor:
    """[vocab] int32: the part of the hash that is the same for all rows."""
    x = torch.arange(vocab_size, dtype=torch.int32, device=device)
    x ^= _shift(x, 16, 32)
    x *= signed(0x85EBCA6B, 32)
    x ^= _shift(x, 13, 32)
    x *= signed(0xC2B2AE35, 32)
    return x.bitwise_xor_(_shift(x, 16, 32))


def bits(keys: Tensor, hashes: Tensor) -> Tensor:
    """23 random bits per row and token: keys [rows], hashes [tokens] or [rows, tokens] -> [rows, tokens] int32."""
    low, high = keys.to(torch.int32), (keys >> 32).to(torch.int32)  # narrowing keeps the low bits
    x = hashes ^ low[:, None]
    x *= signed(0x2C1B3C6D, 32)
    x += high[:, None]
    x ^= _shift(x, 16, 32)
    x *= signed(0x297A2D39, 32)
    x ^= _shift(x, 15, 32)
    x *= signed(0x85EBCA6B, 32)
    x >>= 9
    return x


def uniform(keys: Tensor, hashes: Tensor) -> Tensor:
    """[rows, tokens] float32 in (0, 1)"""
    return bits(keys, hashes).to(torch.float32).mul_(2.0**-23).add_(0.5 + 2.0**-24)


def gumbel(keys: Tensor, hashes: Tensor) -> Tensor:
    """[rows, tokens] float32"""
    return uniform(keys, hashes).log_().neg_().log_().neg_()


def _shift(x: Tensor, count: int, width: int) -> Tensor:
    return (x >> count).bitwise_and_((1 << (width - count)) - 1)
