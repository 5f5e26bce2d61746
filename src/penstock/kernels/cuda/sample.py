"""The three ways to draw the tokens of a step, as a decode step's graphs have them:

greedy      the largest logit                                             draw
filtered    at random, with temperature, top_k, top_p and min_p           likeliest, filter
full        the same from logits that biases, penalties and masks change  adjust, draw, and so on

A row gets what its request asks for, whichever of them it is in: a greedy one in a step of filtered ones its largest
logit.
"""

from __future__ import annotations

from torch import Tensor

from penstock.kernels.cuda.draw import find_tops, take_largest
from penstock.kernels.cuda.filtered_draw import draw_filtered
from penstock.kernels.cuda.penalties import adjust
from penstock.kernels.cuda.sampling_params import DrawScratch, SamplingTables
from penstock.kernels.cuda.top_k_top_p import draw_likeliest


def greedy(logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor) -> None:
    """logits [rows, vocab] float32; rows [3, rows] int64: slots, what does not matter here, the positions that tokens
    will have, or 0 where none is drawn; the tokens go to `tokens` [rows] int64 and to the sequences of the slots."""
    find_tops(logits, rows, tables, scratch, mask=False)
    take_largest(rows, tables, scratch, tokens)


def filtered(
    logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor, *, found: bool = False
) -> None:
    """The same arguments. `found`: the largest logits are in `scratch` already."""
    if not found:
        find_tops(logits, rows, tables, scratch, mask=False)
    draw_likeliest(logits, rows, tables, scratch, tokens)
    draw_filtered(logits, rows, tables, scratch, tokens)


def full(logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor) -> None:
    """The same arguments; `logits` are overwritten."""
    adjust(logits, rows, tables, scratch)
    find_tops(logits, rows, tables, scratch, mask=True)
    filtered(logits, rows, tables, scratch, tokens, found=True)
