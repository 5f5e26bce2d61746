"""The draw from what top_k, top_p and min_p leave of a row, without sorting it. The reference: `sample.draw.filtered`.

All three keep the scores from some value upwards: top_k those that fewer than k are above, top_p those that less than p
of the mass is above. A program takes a row and searches for the smallest such value by halving the interval it lies in;
each pass over the row tells how many are above the middle, what mass they have, and which values are next to it. Once
few are left above the lower end, they are copied together, and the rest of the search is on those. Nothing is read back
to the host, and a row's sums do not depend on what other rows there are.

It takes the rows that `likeliest` has left, whose cuts lie deep. The search is on differences to the largest logit:
divided by the temperature they are scores, in the same order, and those that round to the same score are together again
in the end.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.draw import noise_of
from penstock.kernels.cuda.launch import Launcher, wait
from penstock.kernels.cuda.likeliest import LOWEST, below, largest_of
from penstock.kernels.cuda.rules import (
    FEW,
    LOG_MIN_P,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Room,
    Rules,
    drawn_at,
    integer,
    noise_key,
    number,
    record,
)
from penstock.kernels.cuda.tiles import LOG2_E


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
def _search(logits, few_values, few_tokens, top, top_k, top_p, temperature, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest value that top_k and top_p keep. Gives where to look for the kept ones, too: the values that may be,
    how many they are, the largest among them (0, if they are differences already), and whether they were copied."""
    rate = LOG2_E / temperature
    source = logits
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
                low = below(cut)
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
                count, mass, above, last = _above(source, size, top, middle, by_mass == 1, rate, BLOCK)
                if (last > low) & (count < most) & (mass < share):
                    high = last
                else:
                    low = middle
                    left = count
                    searching = above < high
            cut = tl.maximum(cut, high)
    return cut, source, size, top, gathered


@triton.jit(do_not_specialize=["count", "width"])
def _kernel(
    logits,
    rows,
    table,
    hashes,
    tops,
    few_values,
    few_tokens,
    tokens,
    slot_tokens,
    count,
    width,
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    slot, position = drawn_at(rows, row, count)
    if (position > 0) & (tl.load(tokens + row) < 0):
        few_values += row * BLOCK
        few_tokens += row * BLOCK
        temperature = number(table, slot, TEMPERATURE)
        top_k = integer(table, slot, TOP_K)
        top_p = number(table, slot, TOP_P)
        top = largest_of(tops, row, PARTS, P)
        cut, source, size, top, gathered = _search(
            logits + row * VOCAB, few_values, few_tokens, top, top_k, top_p, temperature, VOCAB, BLOCK
        )
        least = tl.maximum(tl.div_rn(cut, temperature), tl.maximum(number(table, slot, LOG_MIN_P), LOWEST))
        key = noise_key(table, slot, position)
        best = tl.full([], float("-inf"), tl.float32)
        drawn = tl.full([], 0, tl.int32)
        for first in range(0, size, BLOCK):
            scores = tl.div_rn(_values(source, first, size, top, BLOCK), temperature)
            kept = scores >= least
            if tl.max(kept.to(tl.int32), axis=0) > 0:  # noise costs more than all the rest
                token = first + tl.arange(0, BLOCK)
                if gathered == 1:
                    token = tl.load(few_tokens + token, mask=kept, other=0)
                noise = noise_of(tl.load(hashes + token, mask=kept, other=0), key)
                value, index = tl.max(tl.where(kept, scores + noise, float("-inf")), axis=0, return_indices=True)
                if value > best:
                    best, drawn = value, first + index
        if gathered == 1:
            drawn = tl.load(few_tokens + drawn)
        record(tokens, slot_tokens, drawn, row, slot, position, width)


_launch = Launcher(_kernel)


def draw_filtered(logits: Tensor, rows: Tensor, rules: Rules, room: Room, tokens: Tensor) -> None:
    """After `likeliest.draw_likeliest`, with the same arguments: the rows that have -1 for a token."""
    count, vocab = logits.shape
    work = (room.tops, room.few_values, room.few_tokens)
    _launch(
        (count, 1, 1),
        logits.dtype,
        (logits, rows, rules.table, rules.hashes, *work, tokens, rules.tokens, count, rules.tokens.shape[1]),
        (vocab, *room.shape, FEW),
        num_warps=16,
    )
