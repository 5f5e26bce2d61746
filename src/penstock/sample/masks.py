"""Logit bias, allowed and banned tokens, and end tokens banned by min_tokens: of one request. A mask has a bit for each
token that may be drawn."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from penstock.flow import Admit

Ids = np.ndarray[Any, np.dtype[np.int64]]
Bits = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float32]]


def mask_bytes(vocab_size: int) -> int:
    """Of one mask: whole words of 32 bits."""
    return -(-vocab_size // 32) * 4


def pack_bits(tokens: Iterable[int], vocab_size: int) -> Bits:
    """[mask_bytes]: a bit for each token id, 1 for these, the lowest bit of a byte first."""
    bits = np.zeros(8 * mask_bytes(vocab_size), dtype=np.uint8)
    bits[[token for token in tokens if 0 <= token < vocab_size]] = 1
    return np.packbits(bits, bitorder="little")


def apply_mask(values: Floats, allowed: Bits) -> None:
    """Set all but the allowed values [vocab] to -inf. These are either few or nearly all: indexing the smaller side
    takes a third of the time of a masked copy."""
    few = 2 * int(np.bitwise_count(allowed).sum(dtype=np.int64)) <= len(values)
    looked_up = np.unpackbits(allowed if few else ~allowed, count=len(values), bitorder="little")
    tokens = looked_up.view(np.bool_).nonzero()[0]
    if few:
        kept = values[tokens]
        values.fill(-math.inf)
        values[tokens] = kept
    else:
        values[tokens] = -math.inf


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """One request's biases and bans, by token ids [k]. None: none."""

    bias_tokens: Ids | None = None
    bias: Floats | None = None
    allowed: Ids | None = None
    banned: Ids | None = None
    ends: Ids | None = None  # banned until min_tokens are out

    @classmethod
    def of(cls, admit: Admit, vocab_size: int) -> TokenMasks | None:
        """Ids beyond the vocabulary have no logit to mask. One token is always allowed: `min_tokens` yields where only
        end tokens are, and SamplingParams rejects requests that ban all allowed tokens. With a constraint,
        `constraints` applies `min_tokens`: the grammar may allow nothing but the end."""

        def ids(tokens: Iterable[int]) -> Ids | None:
            known = [token for token in tokens if 0 <= token < vocab_size]
            return np.array(known, dtype=np.int64) if known else None

        params = admit.params
        ends = admit.end_tokens if params.min_tokens and params.constraint is None else ()
        if not (params.logit_bias or params.allowed_tokens or params.banned_tokens or ends):
            return None
        allowed = set(params.allowed_tokens) - set(params.banned_tokens)
        bias = {token: value for token, value in params.logit_bias.items() if 0 <= token < vocab_size}
        return cls(
            bias_tokens=ids(bias),
            bias=np.array(list(bias.values()), dtype=np.float32) if bias else None,
            allowed=ids(sorted(allowed)),
            banned=None if allowed else ids(params.banned_tokens),
            ends=None if allowed and allowed <= set(ends) else ids(ends),
        )

    @property
    def bans(self) -> bool:
        """Whether any token is banned, now or until min_tokens."""
        return not (self.allowed is None and self.banned is None and self.ends is None)

    def allowed_bits(self, vocab_size: int, before_min: bool) -> Bits:
        """The allowed tokens, as `pack_bits` has them; `before_min`: fewer than `min_tokens` are out."""
        bits = ~pack_bits((), vocab_size) if self.allowed is None else pack_bits(self.allowed, vocab_size)
        for banned in (self.banned, self.ends if before_min else None):
            if banned is not None:
                bits &= ~pack_bits(banned, vocab_size)
        return bits
