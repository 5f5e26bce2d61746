"""Draws from the tokens that top-k, top-p and min-p keep, without sorting: the slow path for rows that keep many.
The reference: `sample.reference.draw.filtered`.

All three filters keep the scores above a threshold: top_k those with fewer than k above them, top_p those with less
than p of the mass above them. One program per row finds the threshold of top_k by bisection: each pass over the row
counts the values above the middle and finds the values next to it. Once few candidates are left above the lower end,
they are copied together, and later passes read only those. For top_p it draws until a draw is kept (rejection). Nothing
is read back to the host, and a row's sums do not depend on other rows.

Takes the rows that `top_k_top_p` leaves. The bisection is over differences to the largest logit: divided by the
temperature they are scores, in the same order; values that round to the same score end up on the same side.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import LOG2_E
from penstock.kernels.cuda.draw import noise_of
from penstock.kernels.cuda.launch import Launcher, wait
from penstock.kernels.cuda.sampling_params import (
    FEW,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    DrawScratch,
    SamplingTables,
    draw_target,
    least_score,
    load_float,
    load_int,
    noise_key,
    write_token,
)
from penstock.kernels.cuda.top_k_top_p import LOWEST, gather, largest_of, values_of


@triton.jit
def _above(source, size, top, middle, BLOCK: tl.constexpr):
    """Count and smallest of the values above `middle`, and the largest of the others."""
    counts = tl.zeros([BLOCK], tl.int32)
    nexts = tl.full([BLOCK], float("inf"), tl.float32)
    lasts = tl.full([BLOCK], float("-inf"), tl.float32)
    for first in range(0, size, BLOCK):
        values = values_of(source, first, top, size, BLOCK)
        above = values > middle
        counts += above.to(tl.int32)
        nexts = tl.where(above, tl.minimum(nexts, values), nexts)
        lasts = tl.where(above, lasts, tl.maximum(lasts, values))
    return tl.sum(counts, axis=0), tl.min(nexts, axis=0), tl.max(lasts, axis=0)


@triton.jit
def _mass(source, size, top, temperature, score, ITSELF: tl.constexpr, BLOCK: tl.constexpr):
    """Mass of the scores above `score`; with ITSELF also of those equal to it."""
    masses = tl.zeros([BLOCK], tl.float32)
    for first in range(0, size, BLOCK):
        scores = tl.div_rn(values_of(source, first, top, size, BLOCK), temperature)
        above = scores >= score if ITSELF else scores > score
        masses += tl.where(above, tl.exp2(scores * LOG2_E), 0.0)
    return tl.sum(masses.to(tl.float64), axis=0)


@triton.jit
def _gather(source, size, top, low, few_values, few_tokens, BLOCK: tl.constexpr):
    """Copy the values above `low` and their tokens, in order; gives their number."""
    found = 0
    for first in range(0, size, BLOCK):
        values = values_of(source, first, top, size, BLOCK)
        found += gather(values, values > low, first, few_values + found, few_tokens + found, BLOCK)
    tl.debug_barrier()  # other threads read what this one has written
    return found


@triton.jit
def _search(logits, few_values, few_tokens, top, k, temperature, VOCAB: tl.constexpr, BLOCK: tl.constexpr):
    """The smallest value with fewer than k above it; and where the candidates are: their values, their number, the
    largest logit (0, if the values are differences already), and whether they were copied."""
    source = logits
    size = tl.full([], VOCAB, tl.int32)
    gathered = tl.full([], 0, tl.int32)
    # The threshold is in (low, high].
    low = tl.full([], LOWEST, tl.float32)
    high = tl.full([], 0.0, tl.float32)
    left = size  # values above `low`
    searching = high > low
    while searching:
        if (left <= BLOCK) & (gathered == 0):
            size = _gather(source, size, top, low, few_values, few_tokens, BLOCK)
            source = few_values
            top = tl.full([], 0.0, tl.float32)
            gathered += 1
        # The middle, but not far below `high`: the interval may begin at LOWEST.
        middle = tl.maximum(low + (high - low) * 0.5, 2.0 * high - 8.0 * temperature)
        middle = tl.where(middle < high, middle, low)
        count, above, last = _above(source, size, top, middle, BLOCK)
        if (last > low) & (count < k):
            high = last
        else:
            low = middle
            left = count
            searching = above < high
    return high, source, size, top, gathered


@triton.jit
def _noisiest(source, size, top, few_tokens, gathered, temperature, least, bar, key, hashes, BLOCK: tl.constexpr):
    """The largest score + noise among the scores from `least` and above `bar`, and its index."""
    best = tl.full([], float("-inf"), tl.float32)
    drawn = tl.full([], 0, tl.int32)
    for first in range(0, size, BLOCK):
        scores = tl.div_rn(values_of(source, first, top, size, BLOCK), temperature)
        kept = (scores >= least) & (scores > bar)
        if tl.max(kept.to(tl.int32), axis=0) > 0:  # noise costs more than the rest
            token = first + tl.arange(0, BLOCK)
            if gathered == 1:
                token = tl.load(few_tokens + token, mask=kept, other=0)
            noise = noise_of(tl.load(hashes + token, mask=kept, other=0), key)
            value, index = tl.max(tl.where(kept, scores + noise, float("-inf")), axis=0, return_indices=True)
            if value > best:
                best, drawn = value, first + index
    return best, drawn


@triton.jit(do_not_specialize=["count", "width"])
def _kernel(
    logits,
    rows,
    slot_params,
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
    slot, position = draw_target(rows, row, count)
    if (position > 0) & (tl.load(tokens + row) < 0):
        few_values += row * BLOCK
        few_tokens += row * BLOCK
        temperature = load_float(slot_params, slot, TEMPERATURE)
        top_k = load_int(slot_params, slot, TOP_K)
        top_p = load_float(slot_params, slot, TOP_P)
        key = noise_key(slot_params, slot, position)
        source = logits + row * VOCAB
        size = tl.full([], VOCAB, tl.int32)
        top = largest_of(tops, row, PARTS, P)
        gathered = tl.full([], 0, tl.int32)
        least = tl.full([], LOWEST, tl.float32)
        if top_k > 0:
            cut, source, size, top, gathered = _search(
                source, few_values, few_tokens, top, top_k, temperature, VOCAB, BLOCK
            )
            least = tl.maximum(tl.div_rn(cut, temperature), LOWEST)
        share = top_p * _mass(source, size, top, temperature, least, True, BLOCK)
        least = tl.maximum(least, least_score(slot_params, slot))
        # Rejection, as in `top_k_top_p._draw_among`.
        score = tl.full([], float("-inf"), tl.float32)
        drawn = tl.full([], 0, tl.int32)
        drawing = tl.full([], True, tl.int1)
        while drawing:
            best, drawn = _noisiest(
                source, size, top, few_tokens, gathered, temperature, least, score, key, hashes, BLOCK
            )
            score = tl.div_rn(tl.load(source + drawn) - top, temperature)
            heavier = _mass(source, size, top, temperature, score, False, BLOCK)
            drawing = (heavier >= share) & (best > float("-inf"))
        if gathered == 1:
            drawn = tl.load(few_tokens + drawn)
        write_token(tokens, slot_tokens, drawn, row, slot, position, width)


_launch = Launcher(_kernel)


def draw_filtered(logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor) -> None:
    """After `top_k_top_p.draw_top_k_top_p`, with the same arguments: draws the rows whose token is -1."""
    count, vocab = logits.shape
    work = (scratch.tops, scratch.few_values, scratch.few_tokens)
    _launch(
        (count, 1, 1),
        logits.dtype,
        (logits, rows, tables.slot_params, tables.hashes, *work, tokens, tables.tokens, count, tables.tokens.shape[1]),
        (vocab, *scratch.parts, FEW),
        num_warps=16,
    )
