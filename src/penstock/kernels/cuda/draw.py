"""The largest of a row of logits, bare or with temperature and Gumbel noise; the noise is that of `sample.noise`.

A row is cut into parts, each with a program of its own; a last program takes the largest of the parts. Of equal values
the smallest id counts.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait

PART = 8192


@triton.jit
def noise_of(hashes, key):
    """See `sample.noise` for the arithmetic. `hashes` int32 by token, `key` int64 of the row."""
    x = hashes.to(tl.uint32, bitcast=True) ^ key.to(tl.uint32)
    x = x * 0x2C1B3C6D + (key >> 32).to(tl.uint32)
    x = x ^ (x >> 16)
    x = x * 0x297A2D39
    x = x ^ (x >> 15)
    x = x * 0x85EBCA6B
    bits = x.to(tl.int32, bitcast=True) >> 9
    uniform = bits.to(tl.float32) * 1.1920928955078125e-07 + 0.500000059604644775390625
    return -libdevice.log(-libdevice.log(uniform))  # tl.log is too coarse next to 1


@triton.jit
def _parts(
    logits,
    tops,
    temperatures,
    keys,
    hashes,
    best,
    place,
    VOCAB: tl.constexpr,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    NOISY: tl.constexpr,
    PART: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    token = part * PART + tl.arange(0, PART)
    values = tl.load(logits + row * VOCAB + token, mask=token < VOCAB, other=float("-inf"))
    if NOISY:
        index = tl.arange(0, P)
        largest = tl.max(tl.load(tops + row * PARTS + index, mask=index < PARTS, other=float("-inf")), axis=0)
        scores = tl.div_rn(values - largest, tl.load(temperatures + row))
        values = scores + noise_of(tl.load(hashes + token, mask=token < VOCAB, other=0), tl.load(keys + row))
        values = tl.where(token < VOCAB, values, float("-inf"))
    top, at = tl.max(values, axis=0, return_indices=True)
    tl.store(best + row * PARTS + part, top)
    tl.store(place + row * PARTS + part, part * PART + at)


@triton.jit(do_not_specialize=["count", "width"])
def _best(
    best,
    place,
    tokens,
    rows,
    slots,
    count,
    width,
    PARTS: tl.constexpr,
    P: tl.constexpr,
    RECORD: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0)
    index = tl.arange(0, P)
    values = tl.load(best + row * PARTS + index, mask=index < PARTS, other=float("-inf"))
    part = tl.argmax(values, axis=0)
    token = tl.load(place + row * PARTS + part)
    tl.store(tokens + row, token.to(tl.int64))
    if RECORD:
        position = tl.load(rows + 2 * count + row)
        tl.store(slots + tl.load(rows + row) * width + position, token, mask=position > 0)


_launch_parts, _launch_best = Launcher(_parts), Launcher(_best)


def greedy(logits: Tensor) -> Tensor:
    """[rows, vocab] float32 -> [rows] int64"""
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    _pick(*search(logits), tokens)
    return tokens


def record_greedy(logits: Tensor, tokens: Tensor, rows: Tensor, slots: Tensor) -> None:
    """The same, written to `tokens`; and to `slots` [slots, tokens] int32, for rows that have a position there.
    rows [3, rows] int64: slots, what does not matter here, positions or 0."""
    _pick(*search(logits), tokens, rows, slots)


def plain(logits: Tensor, temperature: Tensor, keys: Tensor, hashes: Tensor) -> Tensor:
    """[rows, vocab] float32; temperature [rows, 1] float32, keys [rows] int64, hashes [vocab] int32 -> [rows] int64"""
    tops, _ = search(logits)
    tokens = torch.empty(logits.shape[0], dtype=torch.int64, device=logits.device)
    _pick(*search(logits, tops, temperature, keys, hashes), tokens)
    return tokens


def search(logits: Tensor, *noisy: Tensor) -> tuple[Tensor, Tensor]:
    """The largest of each part and where it is; `noisy` are the largest logits and the arguments of `plain`."""
    rows, vocab = logits.shape
    parts = -(-vocab // PART)
    best = torch.empty(rows, parts, dtype=torch.float32, device=logits.device)
    place = torch.empty(rows, parts, dtype=torch.int32, device=logits.device)
    _launch_parts(
        (rows, parts, 1),
        logits.dtype,
        (logits, *(noisy or [logits] * 4), best, place),
        (vocab, parts, power_of_2(parts), bool(noisy), PART),
        num_warps=8,
    )
    return best, place


def _pick(best: Tensor, place: Tensor, tokens: Tensor, rows: Tensor | None = None, slots: Tensor | None = None) -> None:
    count, parts = best.shape
    record = (place, place, 0, 0) if rows is None or slots is None else (rows, slots, count, slots.shape[1])
    constants = (parts, power_of_2(parts), rows is not None)
    _launch_best((count, 1, 1), best.dtype, (best, place, tokens, *record), constants, num_warps=1)
