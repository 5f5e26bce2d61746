"""Biases and bans: what a request says about single tokens, whatever the model thinks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Admit
from penstock.kernels.upload import upload


@dataclass(frozen=True, slots=True)
class TokenMasks:
    """One request's biases and bans, token ids as [k] int64 tensors on the device. None: none."""

    bias_tokens: Tensor | None = None
    bias: Tensor | None = None
    allowed: Tensor | None = None
    banned: Tensor | None = None
    ends: Tensor | None = None  # banned until min_tokens are out

    @classmethod
    def of(cls, admit: Admit, vocab_size: int, device: torch.device) -> TokenMasks | None:
        """Ids beyond the vocabulary have no logit to mask. A token must always come out: `min_tokens` yields where only
        end tokens are allowed, and SamplingParams sees to it that not all allowed tokens are banned. With a constraint
        `min_tokens` has its say in `constraints`, where it is known whether anything else is allowed."""

        def ids(tokens: Iterable[int]) -> Tensor | None:
            known = [token for token in tokens if 0 <= token < vocab_size]
            return upload(known, device, np.int64) if known else None

        params = admit.params
        ends = admit.end_tokens if params.min_tokens and params.constraint is None else ()
        if not (params.logit_bias or params.allowed_tokens or params.banned_tokens or ends):
            return None
        allowed = set(params.allowed_tokens) - set(params.banned_tokens)
        bias = {token: value for token, value in params.logit_bias.items() if 0 <= token < vocab_size}
        return cls(
            bias_tokens=ids(bias),
            bias=upload(list(bias.values()), device, np.float32) if bias else None,
            allowed=ids(sorted(allowed)),
            banned=None if allowed else ids(params.banned_tokens),
            ends=None if allowed and allowed <= set(ends) else ids(ends),
        )


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


def combine(rows: list[tuple[int, TokenMasks, bool]], vocab_size: int) -> StepMasks:
    """`rows`: row of the logits, its masks, and whether it is still short of `min_tokens`."""
    bias_at: list[Tensor] = []
    bias: list[Tensor] = []
    allowed_rows: list[int] = []
    allowed_at: list[Tensor] = []
    banned_at: list[Tensor] = []
    for row, masks, early in rows:
        first = row * vocab_size
        if masks.bias_tokens is not None and masks.bias is not None:
            bias_at.append(masks.bias_tokens + first)
            bias.append(masks.bias)
        if masks.allowed is not None:
            allowed_rows.append(row)
            allowed_at.append(masks.allowed + first)
        if masks.banned is not None:
            banned_at.append(masks.banned + first)
        if early and masks.ends is not None:
            banned_at.append(masks.ends + first)
    return StepMasks(
        bias_at=_joined(bias_at),
        bias=_joined(bias),
        allowed_rows=upload(allowed_rows, allowed_at[0].device) if allowed_rows else None,
        allowed_at=_joined(allowed_at),
        banned_at=_joined(banned_at),
    )


def _joined(parts: list[Tensor]) -> Tensor | None:
    return torch.cat(parts) if parts else None
