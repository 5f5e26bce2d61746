"""Logit bias, allowed and banned tokens, and end tokens banned by min_tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.upload import upload

Ids = np.ndarray[Any, np.dtype[np.int64]]
Bits = np.ndarray[Any, np.dtype[np.uint8]]


def pack_bits(tokens: Iterable[int], vocab_size: int) -> Bits:
    """[bytes]: a bit for each token id, 1 for these, the lowest bit of a byte first; whole words of 32."""
    bits = np.zeros(-(-vocab_size // 32) * 32, dtype=np.uint8)
    bits[[token for token in tokens if 0 <= token < vocab_size]] = 1
    return np.packbits(bits, bitorder="little")


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """One request's biases and bans, by token ids [k]. None: none."""

    bias_tokens: Ids | None = None
    bias: np.ndarray[Any, np.dtype[np.float32]] | None = None
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


@dataclass(frozen=True, slots=True)
class StepMasks:
    """The masks of all rows of a step, as indices into the flattened logits."""

    bias_at: Tensor | None
    bias: Tensor | None
    allowed_rows: Tensor | None
    allowed_at: Tensor | None
    banned_at: Tensor | None

    def add_bias(self, logits: Tensor) -> None:
        if self.bias_at is not None and self.bias is not None:
            logits.view(-1).index_add_(0, self.bias_at, self.bias)

    def ban(self, logits: Tensor) -> None:
        flat = logits.view(-1)
        if self.allowed_rows is not None and self.allowed_at is not None:
            kept = flat[self.allowed_at]
            logits.index_fill_(0, self.allowed_rows, -math.inf)
            flat[self.allowed_at] = kept
        if self.banned_at is not None:
            flat.index_fill_(0, self.banned_at, -math.inf)


def combine(rows: list[tuple[int, TokenMasks, bool]], vocab_size: int, device: torch.device) -> StepMasks:
    """`rows`: row of the logits, its masks, and whether it is still short of `min_tokens`."""
    bias_at: list[Ids] = []
    bias: list[np.ndarray[Any, Any]] = []
    allowed_rows: list[int] = []
    allowed_at: list[Ids] = []
    banned_at: list[Ids] = []
    for row, masks, before_min in rows:
        first = row * vocab_size
        if masks.bias_tokens is not None and masks.bias is not None:
            bias_at.append(masks.bias_tokens + first)
            bias.append(masks.bias)
        if masks.allowed is not None:
            allowed_rows.append(row)
            allowed_at.append(masks.allowed + first)
        if masks.banned is not None:
            banned_at.append(masks.banned + first)
        if before_min and masks.ends is not None:
            banned_at.append(masks.ends + first)

    def concatenate(parts: list[np.ndarray[Any, Any]]) -> Tensor | None:
        return upload(np.concatenate(parts), device) if parts else None

    return StepMasks(
        bias_at=concatenate(bias_at),
        bias=concatenate(bias),
        allowed_rows=upload(allowed_rows, device) if allowed_rows else None,
        allowed_at=concatenate(allowed_at),
        banned_at=concatenate(banned_at),
    )
