"""The draw from what top_k, top_p and min_p leave of a row, without sorting it. The reference: `sample.draw.filtered`.

All three keep the scores from some value upwards: top_k those that fewer than k are above, top_p those that less than p
of the mass is above. A program takes a row and searches for the smallest such value by halving the interval it lies in;
each pass over the row tells how many are above the middle, what mass they have, and which values are next to it. Once
few are left above the lower end, they are copied together, and the rest of the search is on those. Nothing is read back
to the host, and a row's sums do not depend on what other rows there are.

The search is on differences to the largest logit: divided by the temperature they are scores, in the same order, and
those that round to the same score are together again in the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda import draw
from penstock.kernels.cuda.launch import Launcher, power_of_2, wait
from penstock.kernels.cuda.tiles import LOG2_E

BLOCK = 8192  # values taken at a time, and how many are few
LOWEST = tl.constexpr(-3.4028234663852886e38)  # below it is only -inf: banned


@triton.jit
def _values(source, first, size, top, BLOCK: tl.constexpr):
    at = first + tl.arange(0, BLOCK)
    return tl.load(source + at, mask=at < size, other=float("-inf")) - top


@triton.jit
def _above(source, size, top, middle, weighed, rate, BLOCK: tl.constexpr):
    """Of the values above `middle`: how many they are, their mass (if `weighed`; `rate` makes them exponents of 2), the
    smallest; and the largest of the others."""
    counts = tl.zeros([BLOCK], tl.int32)
    masses = tl.zeros([BLOCK], tl.float32)
    nexts = tl.full([BLOCK], float("inf"), tl.float32)
    lasts = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(0, size, BLOCK):
        values = _values(source, first, size, top, BLOCK)
        above = values > middle
        counts += above.to(tl.int32)
        if weighed:
            masses += tl.where(above, tl.exp2(values * rate), 0.0)
        nexts = tl.where(above, tl.minimum(nexts, values), nexts)
        lasts = tl.where(above, lasts, tl.maximum(lasts, values))
    mass = tl.sum(masses.to(tl.float64), axis=0)
    return tl.sum(counts, axis=0), mass, tl.min(nexts, axis=0), tl.max(lasts, axis=0)


@triton.jit
def _gather(source, size, top, low, few_values, few_tokens, BLOCK: tl.constexpr):
    """The values above `low` and their tokens, in order; gives how many they are."""
    found = 0
    for first in range(0, size, BLOCK):
        values = _values(source, first, size, top, BLOCK)
        above = values > low
        place = found + tl.cumsum(above.to(tl.int32), axis=0) - 1
        tl.store(few_values + place, values, mask=above)
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
    few_values,
    few_tokens,
    tokens,
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    few_values += row * BLOCK
    few_tokens += row * BLOCK
    part = tl.arange(0, P)
    top = tl.max(tl.load(tops + row * PARTS + part, mask=part < PARTS, other=float("-inf")), axis=0)
    temperature = tl.load(temperatures + row)
    rate = LOG2_E / temperature
    top_k = tl.load(top_ks + row).to(tl.int32)
    top_p = tl.load(top_ps + row)
    # Where the values are: in the logits, or copied together.
    source = logits + row * VOCAB
    size = tl.full([], VOCAB, tl.int32)
    gathered = tl.full([], 0, tl.int32)

    cut = tl.full([], LOWEST, tl.float32)
    for by_mass in range(2):
        if tl.where(by_mass == 0, top_k > 0, top_p < float("inf")) & (top > float("-inf")):
            # The smallest value that fewer than `most` and less than `share` are above is in (low, high].
            low = tl.full([], LOWEST, tl.float32)
            high = tl.full([], 0.0, tl.float32)
            most = top_k
            share = tl.full([], float("inf"), tl.float64)
            left = size  # how many are above `low`
            if by_mass == 1:
                low = cut * 1.000001 - 1e-37
                left, total, _, _ = _above(source, size, top, low, True, rate, BLOCK)
                most = left + 1
                share = top_p * total
                # All values from here down, as many as there may be, have less than the rest of the mass.
                bound = tl.log((1.0 - top_p) * (total / VOCAB).to(tl.float32)) - 0.01
                low = tl.maximum(low, bound * temperature)
            searching = high > low
            while searching:
                if (left <= BLOCK) & (gathered == 0):
                    size = _gather(source, size, top, low, few_values, few_tokens, BLOCK)
                    source = few_values
                    top = tl.full([], 0.0, tl.float32)
                    gathered += 1
                # The middle, but no further down than twice of what is known: intervals may begin at LOWEST.
                middle = tl.maximum(low + (high - low) * 0.5, 2.0 * high - 8.0 * temperature)
                middle = tl.where(middle < high, middle, low)
                count, mass, above, below = _above(source, size, top, middle, by_mass == 1, rate, BLOCK)
                if (below > low) & (count < most) & (mass < share):
                    high = below
                else:
                    low = middle
                    left = count
                    searching = above < high
            cut = tl.maximum(cut, high)

    least = tl.maximum(tl.div_rn(cut, temperature), tl.maximum(tl.load(log_min_ps + row), LOWEST))
    key = tl.load(keys + row)
    best = tl.full([], float("-inf"), tl.float32)
    drawn = tl.full([], 0, tl.int32)
    for first in range(0, size, BLOCK):
        scores = tl.div_rn(_values(source, first, size, top, BLOCK), temperature)
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
    few_values = torch.empty(rows, BLOCK, dtype=torch.float32, device=logits.device)
    few_tokens = torch.empty(rows, BLOCK, dtype=torch.int32, device=logits.device)
    tokens = torch.empty(rows, dtype=torch.int64, device=logits.device)
    parts = tops.shape[1]
    _launch(
        (rows, 1, 1),
        logits.dtype,
        (logits, tops, temperature, top_k, top_p, log_min_p, keys, hashes, few_values, few_tokens, tokens),
        (vocab, parts, power_of_2(parts), BLOCK),
        num_warps=16,
    )
    return tokens
