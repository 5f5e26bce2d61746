"""Greedy sampling: the argmax of each row among its allowed tokens; and the Gumbel noise of random draws.

Each part of a row has its own program; a last program takes the largest of the parts. Of equal values the smallest
token id wins.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait
from penstock.kernels.cuda.sampling_params import (
    MASKED,
    PART,
    DrawScratch,
    SamplingTables,
    draw_target,
    load_int,
    write_token,
)

ROUGHLY = tl.constexpr(1e-3)  # more than twice the error of `rough_noise_of`


@triton.jit
def _bits_of(hashes, key):
    """-2^22 .. 2^22 - 1. See `sample.reference.noise` for the arithmetic."""
    x = hashes.to(tl.uint32, bitcast=True) ^ key.to(tl.uint32)
    x = x * 0x2C1B3C6D + (key >> 32).to(tl.uint32)
    x = x ^ (x >> 16)
    x = x * 0x297A2D39
    x = x ^ (x >> 15)
    x = x * 0x85EBCA6B
    return x.to(tl.int32, bitcast=True) >> 9


@triton.jit
def noise_of(hashes, key):
    """`hashes` int32 by token, `key` int64 of the row."""
    uniform = _bits_of(hashes, key).to(tl.float32) * 1.1920928955078125e-07 + 0.500000059604644775390625
    return -libdevice.log(-libdevice.log(uniform))  # tl.log is too coarse next to 1


@triton.jit
def rough_noise_of(hashes, key):
    """The same with a small error, in less than half the time."""
    to_one = 0.499999940395355224609375 - _bits_of(hashes, key).to(tl.float32) * 1.1920928955078125e-07
    logarithm = tl.where(to_one < 0.015625, to_one + 0.5 * to_one * to_one, -tl.log(1.0 - to_one))
    return -tl.log(logarithm)


@triton.jit
def best_part(values, tokens, row, PARTS: tl.constexpr, P: tl.constexpr):
    """The token of the part with the largest value."""
    part = tl.arange(0, P)
    best = tl.argmax(tl.load(values + row * PARTS + part, mask=part < PARTS, other=float("-inf")), axis=0)
    return tl.load(tokens + row * PARTS + best)


@triton.jit(do_not_specialize=["count"])
def _parts(
    logits,
    rows,
    slot_params,
    allowed,
    tops,
    places,
    count,
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    MASK: tl.constexpr,
    PART: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    logits += row * VOCAB
    if MASK:
        # One row of this matrix for each word of the mask.
        word = part * (PART // 32) + tl.arange(0, PART // 32)[:, None]
        token = word * 32 + tl.arange(0, 32)[None, :]
        values = tl.load(logits + token, mask=token < VOCAB, other=float("-inf"))
        slot = tl.load(rows + row)
        if load_int(slot_params, slot, MASKED):
            mask_row = tl.load(rows + 3 * count + row)
            words = tl.load(allowed + mask_row * ((VOCAB + 31) // 32) + word, mask=word * 32 < VOCAB, other=0)
            banned = ((words >> tl.arange(0, 32)[None, :]) & 1) == 0
            tl.store(logits + token, float("-inf"), mask=banned & (token < VOCAB))
            values = tl.where(banned, float("-inf"), values)
        tops_of, columns = tl.max(values, axis=1, return_indices=True)
        top, line = tl.max(tops_of, axis=0, return_indices=True)
        at = line * 32 + tl.sum(tl.where(tl.arange(0, PART // 32) == line, columns, 0), axis=0)
    else:
        token = part * PART + tl.arange(0, PART)
        values = tl.load(logits + token, mask=token < VOCAB, other=float("-inf"))
        top, at = tl.max(values, axis=0, return_indices=True)
    tl.store(tops + row * PARTS + part, top)
    tl.store(places + row * PARTS + part, tl.minimum(part * PART + at, VOCAB - 1))


@triton.jit(do_not_specialize=["count", "width"])
def _best(
    rows,
    tops,
    places,
    tokens,
    slot_tokens,
    count,
    width,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0)
    slot, position = draw_target(rows, row, count)
    token = best_part(tops, places, row, PARTS, P)
    write_token(tokens, slot_tokens, token, row, slot, position, width)


_launch_parts, _launch_best = Launcher(_parts), Launcher(_best)


def find_part_maxima(logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, *, mask: bool) -> None:
    """Write the largest of each part of `logits` [rows, vocab] float32 to `scratch`. `mask`: tokens that `rows[3]`
    of the table of masks does not allow become -inf first, where the slot has masks."""
    parts = scratch.tops.shape[1]
    _launch_parts(
        (len(logits), parts, 1),
        logits.dtype,
        (logits, rows, tables.slot_params, tables.allowed, scratch.tops, scratch.places, len(logits)),
        (logits.shape[1], parts, mask, PART),
        num_warps=8,
    )


def take_argmax(rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor) -> None:
    """After `find_part_maxima`: write the tokens of the largest logits to `tokens` [rows] int64 and to the sequences of
    their slots. `rows` [3, rows] int64: slots, unused, positions of the drawn tokens (0: the row draws none)."""
    count = rows.shape[1]
    _launch_best(
        (count, 1, 1),
        scratch.tops.dtype,
        (rows, scratch.tops, scratch.places, tokens, tables.tokens, count, tables.tokens.shape[1]),
        scratch.parts,
        num_warps=1,
    )
