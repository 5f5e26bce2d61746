"""Which drafted tokens were right: one pass over the draws of a step, on the device.

A row draws one token for each position it computes last, and the tokens behind the first of these were drafted. A draft
is right if it equals the token drawn at its position, and those before it are right.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, wait

MOST_DRAWS = 32  # of a row


@triton.jit(do_not_specialize=["count"])
def _accept(drawn, computed, places, result, count, MOST: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    row = tl.program_id(0)
    first = tl.load(places + row)
    draws = tl.load(places + row + 1) - first
    at = tl.load(places + count + 1 + row)
    index = tl.arange(0, MOST)
    token = tl.load(drawn + first + index, mask=index < draws, other=0)
    draft = tl.load(computed + at + 1 + index, mask=index + 1 < draws, other=-1)
    right = tl.min(tl.where((index + 1 < draws) & (token == draft), MOST, index), axis=0)
    tl.store(result + row, tl.minimum(right + 1, draws).to(tl.int32))
    tl.store(result + count + first + index, token.to(tl.int32), mask=index < draws)


@triton.jit(do_not_specialize=["count", "width"])
def _write(rows, tokens, slot_tokens, count, width, AT_ONCE: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    index = tl.program_id(0) * AT_ONCE + tl.arange(0, AT_ONCE)
    is_token = index < count
    slot = tl.load(rows + index, mask=is_token, other=0)
    position = tl.load(rows + count + index, mask=is_token, other=0)
    token = tl.load(tokens + index, mask=is_token, other=0)
    tl.store(slot_tokens + slot * width + position, token.to(tl.int32), mask=is_token)


_launch_accept, _launch_write = Launcher(_accept), Launcher(_write)
AT_ONCE = 128


def accept(drawn: Tensor, computed: Tensor, places: Tensor, result: Tensor) -> None:
    """How many draws of each row count: those up to the first that differs from its draft, and that one.

    `drawn` [draws] int64, row by row; `computed` [tokens] int64: the input tokens of the step. `places` [2, rows + 1]
    int64: the first draw of each row, and at last their number; the packed token it is drawn from. `result`
    [rows + draws] int32 gets the counts and the drawn tokens.
    """
    rows = places.shape[1] - 1
    arguments = drawn, computed, places, result, rows
    _launch_accept((rows, 1, 1), drawn.dtype, arguments, (MOST_DRAWS,), num_warps=1)


def write_tokens(rows: Tensor, tokens: Tensor, slot_tokens: Tensor) -> None:
    """Write `tokens` [n] int64 to the sequences. `rows` [2 or more, n] int64: slots, positions."""
    count = rows.shape[1]
    arguments = rows, tokens, slot_tokens, count, slot_tokens.shape[1]
    _launch_write((-(-count // AT_ONCE), 1, 1), tokens.dtype, arguments, (AT_ONCE,), num_warps=4)
