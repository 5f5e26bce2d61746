"""The three ways to sample a step, each captured as a CUDA graph of decode steps:

greedy      argmax                                                        draw
filtered    temperature, top-k, top-p and min-p                           top_k_top_p, filtered_draw
full        the same after biases, penalties and masks                    penalties, draw, and as filtered

Each is right for the requests that need less: in a step with filtered rows a greedy row gets its argmax.
"""

from __future__ import annotations

from torch import Tensor

from penstock.kernels.cuda.draw import find_part_maxima, take_argmax
from penstock.kernels.cuda.filtered_draw import draw_filtered
from penstock.kernels.cuda.penalties import apply_biases_and_penalties
from penstock.kernels.cuda.sampling_params import DrawScratch, SamplingTables
from penstock.kernels.cuda.top_k_top_p import draw_top_k_top_p


def greedy(logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor) -> None:
    """logits [rows, vocab] float32; rows [4, rows] int64: slots, unused, positions of the drawn tokens (0: the row
    draws none), masks (read by `full` alone). Tokens are written to `tokens` [rows] int64 and to the sequences of the
    slots."""
    find_part_maxima(logits, rows, tables, scratch, mask=False)
    take_argmax(rows, tables, scratch, tokens)


def filtered(
    logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor, *, found: bool = False
) -> None:
    """The same arguments. `found`: `scratch` has the part maxima already."""
    if not found:
        find_part_maxima(logits, rows, tables, scratch, mask=False)
    draw_top_k_top_p(logits, rows, tables, scratch, tokens)
    draw_filtered(logits, rows, tables, scratch, tokens)


def full(logits: Tensor, rows: Tensor, tables: SamplingTables, scratch: DrawScratch, tokens: Tensor) -> None:
    """The same arguments; `logits` are overwritten."""
    apply_biases_and_penalties(logits, rows, tables, scratch)
    find_part_maxima(logits, rows, tables, scratch, mask=True)
    filtered(logits, rows, tables, scratch, tokens, found=True)
