"""The draw: the largest of score + noise among the tokens that the filters keep."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from penstock.sample.reference import noise
from penstock.sample.reference.filters import Filters, candidates, scale

WIDTH = 128  # most likely tokens to filter first; most rows need no more


def greedy(logits: Tensor) -> Tensor:
    """[rows, vocab] -> [rows] int64, as all of these"""
    return logits.argmax(dim=-1)


def plain(logits: Tensor, temperature: Tensor, keys: Tensor, hashes: Tensor) -> Tensor:
    """From all tokens. `keys` [rows] and `hashes` [vocab] are those of `noise`."""
    scores = scale(logits, logits.amax(dim=-1, keepdim=True), temperature)
    return scores.add_(noise.gumbel(keys, hashes)).argmax(dim=-1)


def filtered(logits: Tensor, filters: Filters, keys: Tensor, hashes: Tensor) -> Tensor:
    """From the tokens that the filters keep. Reads back whether the WIDTH most likely were enough."""
    tokens, covered = _draw_among_top(logits, filters, keys, hashes, WIDTH)
    if covered.all():
        return tokens
    by_threshold = filters.only_thresholds[:, 0]
    if len(rest := (~covered & by_threshold).nonzero()[:, 0]):
        tokens[rest] = by_rejection(logits[rest], filters.pick(rest), keys[rest], hashes)
    if len(rest := (~covered & ~by_threshold).nonzero()[:, 0]):
        tokens[rest], _ = _draw_among_top(logits[rest], filters.pick(rest), keys[rest], hashes, logits.shape[1])
    return tokens


def by_rejection(logits: Tensor, filters: Filters, keys: Tensor, hashes: Tensor) -> Tensor:
    """For rows with top_p and min_p alone, without sorting them.

    The largest score + noise of all tokens is the draw, if top_p keeps that token, which only depends on the mass of
    more likely tokens. If not, it and all less likely ones are out, and the largest of the rest is next: on average
    that happens less than 1 / top_p times.
    """
    scores = scale(logits, logits.amax(dim=-1, keepdim=True), filters.temperature)
    probs = torch.softmax(scores, dim=-1)
    values = noise.gumbel(keys, hashes).add_(scores).masked_fill_(scores < filters.least_score, -math.inf)
    while True:
        tokens = values.argmax(dim=-1, keepdim=True)
        more_likely = scores > scores.gather(1, tokens)
        # float64: torch orders the terms by the number of rows, which must not change the result.
        outside = (probs * more_likely).sum(dim=-1, keepdim=True, dtype=torch.float64) >= filters.top_p
        if not outside.any():
            return tokens[:, 0]
        values.masked_fill_(outside & ~more_likely, -math.inf)


def _draw_among_top(
    logits: Tensor, filters: Filters, keys: Tensor, hashes: Tensor, width: int
) -> tuple[Tensor, Tensor]:
    """The draws, and for which rows [rows] they hold."""
    found = candidates(logits, filters, width)
    values = found.scores.add_(noise.gumbel(keys, hashes[found.tokens]))
    best = values.amax(dim=-1, keepdim=True)
    # of equal values the smallest id, as argmax over the whole vocabulary
    tokens = found.tokens.masked_fill(values != best, logits.shape[1] - 1).amin(dim=-1)
    return tokens, found.covered
