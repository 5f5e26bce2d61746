"""Draws at random: from all tokens of a row, or from the likeliest few if top_k and top_p leave no others.

A program takes a part of a row (`_parts`). For a row without top_k and top_p it takes the largest of score + noise.
For one with them it picks up to KEPT of the largest values of its part, and tells where they end. What is above all of
these ends is all there is above the highest of them, so if the cuts of top_k and top_p turn out to lie there, nothing
else matters (`_pick`). Rows for which they do not are left to `filter`, and have -1 for a token until then.

Values are differences to the largest logit: divided by the temperature they are scores, in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.draw import best_part, noise_of
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.rules import (
    FEW,
    KEPT,
    LOG_MIN_P,
    PART,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    Room,
    Rules,
    are_cut,
    drawn_at,
    integer,
    noise_key,
    number,
    record,
)
from penstock.kernels.cuda.tiles import LOG2_E

LOWEST = tl.constexpr(-3.4028234663852886e38)  # below it is only -inf: banned
HALVINGS = tl.constexpr(14)


@triton.jit
def largest_of(tops, row, PARTS: tl.constexpr, P: tl.constexpr):
    """Of a row, from what its parts have."""
    part = tl.arange(0, P)
    return tl.max(tl.load(tops + row * PARTS + part, mask=part < PARTS, other=float("-inf")), axis=0)


@triton.jit
def below(cut):
    """A value below `cut`, and below those that may round to the same score."""
    return cut * 1.000001 - 1e-37


@triton.jit
def _end(values, KEPT: tl.constexpr):
    """A value that at most KEPT are above, and not many less; LOWEST, if they are no more at all."""
    real = values > LOWEST
    end = tl.full([], LOWEST, tl.float32)
    if tl.sum(real.to(tl.int32), axis=0) > KEPT:
        low = tl.min(tl.where(real, values, 0.0), axis=0)
        end = tl.max(values, axis=0)
        for _ in range(HALVINGS):
            middle = low + (end - low) * 0.5
            if tl.sum((values > middle).to(tl.int32), axis=0) > KEPT:
                low = middle
            else:
                end = middle
    return end


@triton.jit(do_not_specialize=["count"])
def _parts(
    logits,
    rows,
    table,
    hashes,
    tops,
    best,
    spots,
    masses,
    few_values,
    few_tokens,
    count,
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    KEPT: tl.constexpr,
    FEW: tl.constexpr,
    PART: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot, position = drawn_at(rows, row, count)
    temperature = number(table, slot, TEMPERATURE)
    if (position > 0) & (temperature > 0.0):
        token = part * PART + tl.arange(0, PART)
        values = tl.load(logits + row * VOCAB + token, mask=token < VOCAB, other=float("-inf"))
        values -= largest_of(tops, row, PARTS, P)
        at = row * PARTS + part
        if are_cut(table, slot):
            end = _end(values, KEPT)
            above = values > end
            place = row * FEW + part * KEPT + tl.cumsum(above.to(tl.int32), axis=0) - 1
            tl.store(few_values + place, values, mask=above)
            tl.store(few_tokens + place, token, mask=above)
            tl.store(best + at, end)
            tl.store(spots + at, tl.sum(above.to(tl.int32), axis=0))
            tl.store(masses + at, tl.sum(tl.exp2(values * (LOG2_E / temperature)), axis=0))
        else:
            noise = noise_of(tl.load(hashes + token, mask=token < VOCAB, other=0), noise_key(table, slot, position))
            scores = tl.div_rn(values, temperature)
            kept = (token < VOCAB) & (scores >= number(table, slot, LOG_MIN_P))
            value, index = tl.max(tl.where(kept, scores + noise, float("-inf")), axis=0, return_indices=True)
            tl.store(best + at, value)
            tl.store(spots + at, tl.minimum(part * PART + index, VOCAB - 1))


@triton.jit
def _cut(values, weights, low, most, share, temperature):
    """The smallest of the values above `low` that fewer than `most` and less than `share` of the weight are above."""
    high = tl.full([], 0.0, tl.float32)
    searching = high > low
    while searching:
        # The middle, but no further down than twice of what is known: the interval may begin at LOWEST.
        middle = tl.maximum(low + (high - low) * 0.5, 2.0 * high - 8.0 * temperature)
        middle = tl.where(middle < high, middle, low)
        above = values > middle
        count = tl.sum(above.to(tl.int32), axis=0)
        weight = tl.sum(tl.where(above, weights, 0.0), axis=0)
        last = tl.max(tl.where(above, float("-inf"), values), axis=0)
        if (last > low) & (count < most) & (weight < share):
            high = last
        else:
            low = middle
            searching = tl.min(tl.where(above, values, float("inf")), axis=0) < high
    return high


@triton.jit
def _least(values, end, total, table, slot):
    """The lowest score that is kept, of the likeliest `values`, which are all there are above `end` (others are -inf);
    and whether these were enough to tell. `total` is the mass of the whole row."""
    temperature = number(table, slot, TEMPERATURE)
    top_k = integer(table, slot, TOP_K)
    top_p = number(table, slot, TOP_P)
    weights = tl.exp2(values * (LOG2_E / temperature)).to(tl.float64)
    everything = end <= LOWEST
    found = tl.sum((values > end).to(tl.int32), axis=0)
    enough = everything | (found >= top_k)
    cut = tl.full([], LOWEST, tl.float32)
    low = end
    if enough & (top_k > 0):
        cut = _cut(values, weights, low, top_k, float("inf"), temperature)
        low = tl.maximum(low, below(cut))
        total = tl.sum(tl.where(values > low, weights, 0.0), axis=0)
    if enough & (top_p < float("inf")):
        share = top_p * total
        enough = everything | (tl.sum(tl.where(values > low, weights, 0.0), axis=0) >= share)
        if enough:
            cut = tl.maximum(cut, _cut(values, weights, low, found + 1, share, temperature))
    least = tl.maximum(tl.div_rn(cut, temperature), tl.maximum(number(table, slot, LOG_MIN_P), LOWEST))
    return least, enough & (everything | (tl.div_rn(end, temperature) < least))


@triton.jit(do_not_specialize=["count", "width"])
def _pick(
    rows,
    table,
    hashes,
    tops,
    places,
    best,
    spots,
    masses,
    few_values,
    few_tokens,
    tokens,
    slot_tokens,
    count,
    width,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    KEPT: tl.constexpr,
    FEW: tl.constexpr,
    ALL_KEPT: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    slot, position = drawn_at(rows, row, count)
    temperature = number(table, slot, TEMPERATURE)
    token = tl.full([], -1, tl.int32)
    if temperature == 0.0:
        token = best_part(tops, places, row, PARTS, P)
    elif are_cut(table, slot) == 0:
        token = best_part(best, spots, row, PARTS, P)
    elif position > 0:
        part = tl.arange(0, P)
        total = tl.load(masses + row * PARTS + part, mask=part < PARTS, other=0.0)
        end = largest_of(best, row, PARTS, P)
        index = tl.arange(0, ALL_KEPT)
        found = tl.load(spots + row * PARTS + index // KEPT, mask=index < PARTS * KEPT, other=0)
        real = index % KEPT < found
        values = tl.load(few_values + row * FEW + index, mask=real, other=float("-inf"))
        values = tl.where(values > end, values, float("-inf"))
        least, enough = _least(values, end, tl.sum(total.to(tl.float64), axis=0), table, slot)
        if enough:
            scores = tl.div_rn(values, temperature)
            kept = scores >= least
            candidates = tl.load(few_tokens + row * FEW + index, mask=kept, other=0)
            noise = noise_of(tl.load(hashes + candidates, mask=kept, other=0), noise_key(table, slot, position))
            value, at = tl.max(tl.where(kept, scores + noise, float("-inf")), axis=0, return_indices=True)
            token = tl.where(value > float("-inf"), tl.load(few_tokens + row * FEW + at), 0)
    record(tokens, slot_tokens, token, row, slot, position, width)


_launch_parts, _launch_pick = Launcher(_parts), Launcher(_pick)


def draw_likeliest(logits: Tensor, rows: Tensor, rules: Rules, room: Room, tokens: Tensor) -> None:
    """After `draw.find_tops`, with the arguments of that and `draw.take_largest`."""
    count, vocab = logits.shape
    few = (room.few_values, room.few_tokens)
    _launch_parts(
        (count, room.shape[0], 1),
        logits.dtype,
        (logits, rows, rules.table, rules.hashes, room.tops, room.best, room.spots, room.masses, *few, count),
        (vocab, *room.shape, KEPT, FEW, PART),
        num_warps=8,
    )
    work = (room.tops, room.places, room.best, room.spots, room.masses, *few)
    _launch_pick(
        (count, 1, 1),
        logits.dtype,
        (rows, rules.table, rules.hashes, *work, tokens, rules.tokens, count, rules.tokens.shape[1]),
        (*room.shape, KEPT, FEW, power_of_2(room.shape[0] * KEPT)),
        num_warps=4,
    )
