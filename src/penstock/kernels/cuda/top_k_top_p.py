"""Top-k/top-p sampling, the fast path: from all tokens of a row, or from the most likely few where top_k and top_p keep
no others.

One program takes one part of a row (`_parts`). For a row without top_k and top_p it finds the largest score + noise.
With them it collects up to KEPT of the largest values of its part as candidates, and stores the cutoff they are above.
Candidates above the largest per-part cutoff are complete, so if the thresholds of top_k and top_p lie there, `_pick`
draws among them. Other rows get the token -1, and `filtered_draw` draws them.

Values are differences to the largest logit: divided by the temperature they are scores, in the same order.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.attention_tiles import LOG2_E
from penstock.kernels.cuda.draw import ROUGHLY, best_part, noise_of, rough_noise_of
from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait
from penstock.kernels.cuda.sampling_params import (
    FEW,
    KEPT,
    PART,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    DrawScratch,
    SamplingTables,
    draw_target,
    has_top_k_top_p,
    least_score,
    load_float,
    load_int,
    noise_key,
    write_token,
)

LOWEST = tl.constexpr(-3.4028234663852886e38)  # below it is only -inf: banned
HALVINGS = tl.constexpr(12)
AT_ONCE = 1024  # tokens


@triton.jit
def largest_of(tops, row, PARTS: tl.constexpr, P: tl.constexpr):
    """The largest value of a row, over its parts."""
    part = tl.arange(0, P)
    return tl.max(tl.load(tops + row * PARTS + part, mask=part < PARTS, other=float("-inf")), axis=0)


@triton.jit
def values_of(source, first, top, size, COUNT: tl.constexpr):
    """COUNT values from `first` on, as differences to `top`; -inf beyond `size`."""
    at = first + tl.arange(0, COUNT)
    return tl.load(source + at, mask=at < size, other=float("-inf")) - top


@triton.jit
def gather(values, kept, first, to_values, to_tokens, COUNT: tl.constexpr):
    """Write the kept values and their tokens, whose ids begin with `first`; gives their number."""
    place = tl.cumsum(kept.to(tl.int32), axis=0) - 1
    tl.store(to_values + place, values, mask=kept)
    tl.store(to_tokens + place, first + tl.arange(0, COUNT), mask=kept)
    return tl.sum(kept.to(tl.int32), axis=0)


@triton.jit
def _cutoff(values, KEPT: tl.constexpr):
    """A value with at most, and nearly, KEPT values above it; LOWEST, if there are no more than KEPT."""
    end = tl.full([], LOWEST, tl.float32)
    if tl.sum((values > LOWEST).to(tl.int32), axis=0) > KEPT:
        low = end
        top = tl.max(values, axis=0)
        end = top
        for _ in range(HALVINGS):
            # The middle, but not far below the upper end: the interval begins at LOWEST.
            middle = tl.maximum(low + (end - low) * 0.5, 2.0 * end - top - 4.0)
            if tl.sum((values > middle).to(tl.int32), axis=0) > KEPT:
                low = middle
            else:
                end = middle
    return end


@triton.jit
def _scores(logits, first, top, temperature, least, VOCAB: tl.constexpr, COUNT: tl.constexpr):
    """Scores of COUNT tokens of a row; -inf below `least`."""
    scores = tl.div_rn(values_of(logits, first, top, VOCAB, COUNT), temperature)
    return tl.where(scores >= least, scores, float("-inf"))


@triton.jit
def _noisiest(
    logits, first, top, temperature, least, key, hashes, VOCAB: tl.constexpr, PART: tl.constexpr, AT_ONCE: tl.constexpr
):
    """The token of the largest score + noise among the PART tokens from `first` on. With rough noise first; exactly, if
    two are too close to tell."""
    rate = 1.0 / temperature
    best = tl.full([AT_ONCE], float("-inf"), tl.float32)
    second = tl.full([AT_ONCE], float("-inf"), tl.float32)
    tokens = tl.full([AT_ONCE], 0, tl.int32)
    for start in range(first, first + PART, AT_ONCE):
        token = start + tl.arange(0, AT_ONCE)
        hashed = tl.load(hashes + token, mask=token < VOCAB, other=0)
        if least > float("-inf"):
            noisy = _scores(logits, start, top, temperature, least, VOCAB, AT_ONCE)
        else:
            noisy = values_of(logits, start, top, VOCAB, AT_ONCE) * rate
        noisy += rough_noise_of(hashed, key)
        second = tl.where(noisy > best, best, tl.maximum(second, noisy))
        tokens = tl.where(noisy > best, token, tokens)
        best = tl.maximum(best, noisy)
    top_noisy, at = tl.max(best, axis=0, return_indices=True)
    found = tl.sum(tl.where(tl.arange(0, AT_ONCE) == at, tokens, 0), axis=0)
    near = (best >= top_noisy - ROUGHLY).to(tl.int32) + (second >= top_noisy - ROUGHLY).to(tl.int32)
    if tl.sum(near, axis=0) > 1:
        most = tl.full([], float("-inf"), tl.float32)
        for start in range(first, first + PART, AT_ONCE):
            token = start + tl.arange(0, AT_ONCE)
            hashed = tl.load(hashes + token, mask=token < VOCAB, other=0)
            noisy = _scores(logits, start, top, temperature, least, VOCAB, AT_ONCE) + noise_of(hashed, key)
            value, at = tl.max(noisy, axis=0, return_indices=True)
            if value > most:
                most, found = value, start + at
    return found


@triton.jit(do_not_specialize=["count"])
def _parts(
    logits,
    rows,
    slot_params,
    hashes,
    tops,
    ends,
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
    AT_ONCE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    slot, position = draw_target(rows, row, count)
    temperature = load_float(slot_params, slot, TEMPERATURE)
    if (position > 0) & (temperature > 0.0):
        logits += row * VOCAB
        top = largest_of(tops, row, PARTS, P)
        at = row * PARTS + part
        if has_top_k_top_p(slot_params, slot):
            end = _cutoff(values_of(logits, part * PART, top, VOCAB, PART), KEPT)
            few = row * FEW + part * KEPT
            found = tl.full([], 0, tl.int32)
            mass = tl.zeros([AT_ONCE], tl.float32)
            for first in range(part * PART, part * PART + PART, AT_ONCE):
                values = values_of(logits, first, top, VOCAB, AT_ONCE)
                mass += tl.exp2(values * (LOG2_E / temperature))
                found += gather(
                    values, values > end, first, few_values + few + found, few_tokens + few + found, AT_ONCE
                )
            tl.store(ends + at, end)
            tl.store(spots + at, found)
            tl.store(masses + at, tl.sum(mass, axis=0))
        else:
            key, least = noise_key(slot_params, slot, position), least_score(slot_params, slot)
            token = _noisiest(logits, part * PART, top, temperature, least, key, hashes, VOCAB, PART, AT_ONCE)
            tl.store(spots + at, tl.minimum(token, VOCAB - 1))


@triton.jit
def _best_spot(
    logits, row, top, spots, temperature, least, key, hashes, VOCAB: tl.constexpr, PARTS: tl.constexpr, P: tl.constexpr
):
    """The token of the largest score + noise among those that the parts have found. A part that keeps none has an
    arbitrary one."""
    part = tl.arange(0, P)
    token = tl.load(spots + row * PARTS + part, mask=part < PARTS, other=0)
    values = tl.load(logits + row * VOCAB + token, mask=part < PARTS, other=float("-inf")) - top
    scores = tl.div_rn(values, temperature)
    noisy = tl.where(scores >= least, scores + noise_of(tl.load(hashes + token), key), float("-inf"))
    best = tl.argmax(noisy, axis=0)
    return tl.load(spots + row * PARTS + best)


@triton.jit
def _kth(scores, k):
    """The smallest score with fewer than k above it."""
    low = tl.full([], LOWEST, tl.float32)
    high = tl.full([], 0.0, tl.float32)
    searching = high > low
    while searching:
        # The middle, but not far below the upper end: the interval begins at LOWEST.
        middle = tl.maximum(low + (high - low) * 0.5, 2.0 * high - 8.0)
        middle = tl.where(middle < high, middle, low)
        above = scores > middle
        last = tl.max(tl.where(above, float("-inf"), scores), axis=0)
        if (last > low) & (tl.sum(above.to(tl.int32), axis=0) < k):
            high = last
        else:
            low = middle
            searching = tl.min(tl.where(above, scores, float("inf")), axis=0) < high
    return high


@triton.jit
def _draw_among(scores, tokens, total, everything, slot_params, slot, key, hashes):
    """A draw from the tokens that top_k, top_p and min_p keep, as an index into `scores`; -1, if the scores are too few
    to decide. `scores` are those of all tokens above some score (others are -inf), or of `everything`; `total` is the
    mass of the row.

    Rejection: the largest score + noise of all tokens is the draw, if top_p keeps that token, which only depends on the
    mass above it. If not, it and all less likely tokens are out, and the largest of the rest is next."""
    top_k = load_int(slot_params, slot, TOP_K)
    top_p = load_float(slot_params, slot, TOP_P)
    weights = tl.exp2(scores * LOG2_E).to(tl.float64)
    least = tl.full([], LOWEST, tl.float32)
    enough = everything | (tl.sum((scores >= LOWEST).to(tl.int32), axis=0) >= top_k)
    if enough & (top_k > 0):
        least = _kth(scores, top_k)
        total = tl.sum(tl.where(scores >= least, weights, 0.0), axis=0)
    share = top_p * total
    enough = enough & (everything | (top_k > 0) | (tl.sum(weights, axis=0) >= share))
    least = tl.maximum(least, least_score(slot_params, slot))
    noise = noise_of(tl.load(hashes + tokens, mask=scores >= least, other=0), key)
    noisy = tl.where(scores >= least, scores + noise, float("-inf"))
    drawn = tl.full([], -1, tl.int32)
    drawing = enough
    while drawing:
        value, drawn = tl.max(noisy, axis=0, return_indices=True)
        score = tl.sum(tl.where(tl.arange(0, scores.shape[0]) == drawn, scores, 0.0), axis=0)
        heavier = tl.sum(tl.where(scores > score, weights, 0.0), axis=0)
        drawing = (heavier >= share) & (value > float("-inf"))
        noisy = tl.where(scores > score, noisy, float("-inf"))
    return drawn


@triton.jit(do_not_specialize=["count", "width"])
def _pick(
    logits,
    rows,
    slot_params,
    hashes,
    tops,
    places,
    ends,
    spots,
    masses,
    few_values,
    few_tokens,
    tokens,
    slot_tokens,
    count,
    width,
    VOCAB: tl.constexpr,
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
    slot, position = draw_target(rows, row, count)
    temperature = load_float(slot_params, slot, TEMPERATURE)
    key = noise_key(slot_params, slot, position)
    top = largest_of(tops, row, PARTS, P)
    token = tl.full([], -1, tl.int32)
    if temperature == 0.0:
        token = best_part(tops, places, row, PARTS, P)
    elif has_top_k_top_p(slot_params, slot) == 0:
        least = least_score(slot_params, slot)
        token = _best_spot(logits, row, top, spots, temperature, least, key, hashes, VOCAB, PARTS, P)
    elif position > 0:
        part = tl.arange(0, P)
        masses_of = tl.load(masses + row * PARTS + part, mask=part < PARTS, other=0.0)
        end = largest_of(ends, row, PARTS, P)
        index = tl.arange(0, ALL_KEPT)
        found = tl.load(spots + row * PARTS + index // KEPT, mask=index < PARTS * KEPT, other=0)
        real = index % KEPT < found
        few = row * FEW + index
        scores = tl.div_rn(tl.load(few_values + few, mask=real, other=float("-inf")), temperature)
        everything = end <= LOWEST
        low = tl.where(everything, float("-inf"), tl.div_rn(end, temperature))
        scores = tl.where(scores > low, scores, float("-inf"))
        candidates = tl.load(few_tokens + few, mask=real, other=0)
        total = tl.sum(masses_of.to(tl.float64), axis=0)
        drawn = _draw_among(scores, candidates, total, everything, slot_params, slot, key, hashes)
        if drawn >= 0:  # with NaN logits it may be none of the candidates: then the token is 0
            token = tl.sum(tl.where(index == drawn, candidates, 0), axis=0)
    write_token(tokens, slot_tokens, token, row, slot, position, width)


_launch_parts, _launch_pick = Launcher(_parts), Launcher(_pick)


def draw_top_k_top_p(
    logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor
) -> None:
    """After `draw.find_part_maxima`; arguments as for that and `draw.take_argmax`."""
    count, vocab = logits.shape
    parts, padded = scratch.parts
    few, kept = (scratch.few_values, scratch.few_tokens), min(KEPT, FEW // parts)
    _launch_parts(
        (count, parts, 1),
        logits.dtype,
        (
            logits,
            rows,
            tables.slot_params,
            tables.hashes,
            scratch.tops,
            scratch.ends,
            scratch.spots,
            scratch.masses,
            *few,
            count,
        ),
        (vocab, parts, padded, kept, FEW, PART, AT_ONCE),
        num_warps=4,
    )
    work = (scratch.tops, scratch.places, scratch.ends, scratch.spots, scratch.masses, *few)
    _launch_pick(
        (count, 1, 1),
        logits.dtype,
        (logits, rows, tables.slot_params, tables.hashes, *work, tokens, tables.tokens, count, tables.tokens.shape[1]),
        (vocab, parts, padded, kept, FEW, power_of_2(parts * kept)),
        num_warps=8,
    )
