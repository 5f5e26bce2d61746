"""The draw from what top_k, top_p and min_p leave of a row, without sorting it. The reference: `sample.draw.filtered`.

All three keep the scores from some value upwards: top_k those that fewer than k are above, top_p those that less than p
of the mass is above. A program takes a row and searches for the smallest such score by halving the interval it lies in;
each pass over the row tells how many are above the middle, what mass they have, and which scores are next to it. Once
few are left above the lower end, they are copied together, and the rest of the search is on those. Nothing is read back
to the host, and a row's sums do not depend on what other rows there are.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda import draw
from penstock.kernels.cuda.launch import Launcher

BLOCK = 8192  # scores taken at a time, and how many are few
LOWEST = tl.constexpr(-3.4028234663852886e38)  # below it is only -inf: banned


@triton.jit
def _scores(source, first, size, top, temperature, BLOCK: tl.constexpr):
    at = first + tl.arange(0, BLOCK)
    return tl.div_rn(tl.load(source + at, mask=at < size, other=float("-inf")) - top, temperature)


@triton.jit
def _above(source, size, top, temperature, value, BLOCK: tl.constexpr):
    """Of the scores above `value`: how many they are, their mass, the smallest; and the largest of the others."""
    counts = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.float32)
    nexts = tl.full([BLOCK], float("inf"), tl.float32)
    lasts = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(0, size, BLOCK):
        scores = _scores(source, first, size, top, temperature, BLOCK)
        above = scores > value
        counts += above.to(tl.int32)
        masses += tl.where(above, tl.exp(scores), 0.0)
        nexts = tl.where(above, tl.minimum(nexts, scores), nexts)
        lasts = tl.where(above, lasts, tl.maximum(lasts, scores))
    mass = tl.sum(masses.to(tl.float64), axis=0)
    return tl.sum(counts, axis=0), mass, tl.min(nexts, axis=0), tl.max(lasts, axis=0)


@triton.jit
def _gather(source, size, top, temperature, low, few_scores, few_tokens, BLOCK: tl.constexpr):
    """The scores above `low` and their tokens, in order; gives how many they are."""
    found = 0
    for first in range(0, size, BLOCK):
        scores = _scores(source, first, size, top, temperature, BLOCK)
        above = scores > low
        place = found + tl.cumsum(above.to(tl.int32), axis=0) - 1
        tl.store(few_scores + place, scores, mask=above)
        tl.store(few_tokens + place, first + tl.arange(0, BLOCK), mask=above)
        found += tl.sum(above.to(tl.int32), axis=0)
    tl.debug_barrier()  # what one thread has written others will read
    return found


@triton.jit
def _kernel(
    logits,
    tops,
    temperatures,
    top_ks,
    top_ps,
    log_min_ps,
    keys,
    hashes,
    few_scores,
    few_tokens,
    tokens,
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    few_scores += row * BLOCK
    few_tokens += row * BLOCK
    part = tl.arange(0, P)
    top = tl.max(tl.load(tops + row * PARTS + part, mask=part < PARTS, other=float("-inf")), axis=0)
    temperature = tl.load(temperatures + row)
    top_k = tl.load(top_ks + row).to(tl.int32)
    top_p = tl.load(top_ps + row)
    # Where the scores are: in the logits, or copied together.
    source = logits + row * VOCAB
    size = tl.full([], VOCAB, tl.int32)
    gathered = tl.full([], 0, tl.int32)

    cut = tl.full([], LOWEST, tl.float32)
    for by_mass in range(2):
        if tl.where(by_mass == 0, top_k > 0, top_p < float("inf")) & (top > float("-inf")):
            # The smallest score that fewer than `most` and less than `share` are above is in (low, high].
            low = tl.full([], LOWEST, tl.float32)
            high = tl.full([], 0.0, tl.float32)
            most = top_k
            share = tl.full([], float("inf"), tl.float64)
            left = size  # how many are above `low`
            if by_mass == 1:
                low = cut * 1.000001 - 1e-37
                left, total, _, _ = _above(source, size, top, temperature, low, BLOCK)
                most = left + 1
                share = top_p * total
                # All scores from here down, as many as there may be, have less than the rest of the mass.
                low = tl.maximum(low, tl.log((1.0 - top_p) * (total / VOCAB).to(tl.float32)) - 0.01)
            searching = high > low
            while searching:
                if (left <= BLOCK) & (gathered == 0):
                    size = _gather(source, size, top, temperature, low, few_scores, few_tokens, BLOCK)
                    source = few_scores
                    gathered += 1
                    top = tl.full([], 0.0, tl.float32)
                    temperature = tl.full([], 1.0, tl.float32)
                # The middle, but no further down than twice of what is known: intervals may begin at LOWEST.
                middle = tl.maximum(low + (high - low) * 0.5, 2.0 * high - 8.0)
                middle = tl.where(middle < high, middle, low)
                count, mass, above, below = _above(source, size, top, temperature, middle, BLOCK)
                if (below > low) & (count < most) & (mass < share):
                    high = below
                else:
                    low = middle
                    left = count
                    searching = above < high
            cut = tl.maximum(cut, high)

    least = tl.maximum(cut, tl.load(log_min_ps + row))
    key = tl.load(keys + row)
    best = tl.full([], float("-inf"), tl.float32)
    drawn = tl.full([], 0, tl.int32)
    for first in range(0, size, BLOCK):
        scores = _scores(source, first, size, top, temperature, BLOCK)
        kept = scores >= least
        if tl.max(kept.to(tl.int32), axis=0) > 0:  # noise costs more than all the rest
            token = first + tl.arange(0, BLOCK)
            if gathered == 1:
                token = tl.load(few_tokens + token, mask=kept, other=0)
            noise = draw.noise_of(tl.load(hashes + token, mask=kept, other=0), key)
            value, index = tl.max(tl.where(kept, scores + noise, float("-inf")), axis=0, return_indices=True)
            if value > best:
                best, drawn = value, first + index
    if gathered == 1:
        drawn = tl.load(few_tokens + drawn)
    tl.store(tokens + row, drawn.to(tl.int64))


_launch = Launcher(_kernel)


def filtered(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    log_min_p: Tensor,
    keys: Tensor,
    hashes: Tensor,
) -> Tensor:
    """[rows, vocab] float32; parameters [rows, 1] as in `sample.filters.Filters`, keys [rows] int64, hashes [vocab]
    int32 -> [rows] int64"""
    rows, vocab = logits.shape
    tops, _ = draw.search(logits)
    few_scores = torch.empty(rows, BLOCK, dtype=torch.float32, device=logits.device)
    few_tokens = torch.empty(rows, BLOCK, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    parts = tops.shape[1]
    _launch(
        (rows, 1, 1),
        logits.dtype,
        (logits, tops, temperature, top_k, top_p, log_min_p, keys, hashes, few_scores, few_tokens, tokens),
        (vocab, parts, triton.next_power_of_2(parts), BLOCK),
        num_warps=16,
    )
    return tokens
