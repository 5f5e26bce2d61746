"""Logit biases and penalties, on the rows that have any. The references: `sample.reference`.

Each program takes one row after the other. Penalties need the number of times that each token occurs in the output: the
program sets the counters of the sequence's tokens to 0, counts, and then exchanges each counter for -1, so that a token
that occurs twice changes its logit once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, wait
from penstock.kernels.cuda.sampling_params import (
    FREQUENCY,
    NUM_BIASES,
    PRESENCE,
    PROMPT_LENGTH,
    REPETITION,
    DrawScratch,
    SamplingTables,
    draw_target,
    load_float,
    load_int,
)

AT_ONCE = 2048  # tokens


@triton.jit
def _add_biases(logits, tokens, biases, count, AT_ONCE: tl.constexpr):
    for first in range(0, count, AT_ONCE):
        index = first + tl.arange(0, AT_ONCE)
        at = logits + tl.load(tokens + index, mask=index < count, other=0)
        value = tl.load(at, mask=index < count, other=0.0) + tl.load(biases + index, mask=index < count, other=0.0)
        tl.store(at, value, mask=index < count)
    tl.debug_barrier()  # other threads read what this one has written


@triton.jit
def _count(counts, tokens, prompt_length, length, AT_ONCE: tl.constexpr):
    """How often each token of the sequence occurs in its output."""
    for first in range(0, length, AT_ONCE):
        index = first + tl.arange(0, AT_ONCE)
        token = tl.load(tokens + index, mask=index < length, other=0)
        tl.store(counts + token, tl.zeros([AT_ONCE], tl.int32), mask=index < length)
    tl.debug_barrier()
    for first in range(prompt_length, length, AT_ONCE):
        index = first + tl.arange(0, AT_ONCE)
        token = tl.load(tokens + index, mask=index < length, other=0)
        tl.atomic_add(counts + token, 1, mask=index < length)
    tl.debug_barrier()


@triton.jit(do_not_specialize=["count", "width"])
def _kernel(
    logits,
    rows,
    slot_params,
    bias_tokens,
    biases,
    slot_tokens,
    counts,
    count,
    width,
    VOCAB: tl.constexpr,
    MOST_BIASES: tl.constexpr,
    AT_ONCE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    wait(OVERLAP)
    counts += tl.program_id(0) * VOCAB
    for row in range(tl.program_id(0), count, tl.num_programs(0)):
        slot, position = draw_target(rows, row, count)
        length = position.to(tl.int32)
        line = logits + tl.cast(row, tl.int64) * VOCAB
        biased = tl.where(length > 0, load_int(slot_params, slot, NUM_BIASES), 0)
        _add_biases(line, bias_tokens + slot * MOST_BIASES, biases + slot * MOST_BIASES, biased, AT_ONCE)
        repetition = load_float(slot_params, slot, REPETITION)
        presence = load_float(slot_params, slot, PRESENCE)
        frequency = load_float(slot_params, slot, FREQUENCY)
        if (length > 0) & ((repetition != 1.0) | (presence != 0.0) | (frequency != 0.0)):
            tokens = slot_tokens + slot * width
            _count(counts, tokens, load_int(slot_params, slot, PROMPT_LENGTH), length, AT_ONCE)
            for first in range(0, length, AT_ONCE):
                index = first + tl.arange(0, AT_ONCE)
                token = tl.load(tokens + index, mask=index < length, other=0)
                times = tl.atomic_xchg(counts + token, -1, mask=index < length)
                mine = (index < length) & (times >= 0)
                value = tl.load(line + token, mask=mine, other=0.0)
                value = tl.where(value < 0, value * repetition, tl.div_rn(value, repetition))
                value -= tl.where(times > 0, presence, 0.0)
                value -= frequency * times.to(tl.float32)
                tl.store(line + token, value, mask=mine)
            tl.debug_barrier()


_launch = Launcher(_kernel)


def apply_biases_and_penalties(logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch) -> None:
    """Change `logits` [rows, vocab] float32 in place. `rows` as in `draw.take_argmax`: the tokens before the drawn
    position are the sequence."""
    count, vocab = logits.shape
    _launch(
        (min(count, len(scratch.counts)), 1, 1),
        logits.dtype,
        (
            logits,
            rows,
            tables.slot_params,
            tables.bias_tokens,
            tables.biases,
            tables.tokens,
            scratch.counts,
            count,
            tables.tokens.shape[1],
        ),
        (vocab, tables.biases.shape[1], AT_ONCE),
        num_warps=8,
    )
