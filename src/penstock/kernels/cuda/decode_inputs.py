"""The inputs of a decode step, gathered by slot and position: the first kernel of a decode graph."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

AT_ONCE = 256
LONGEST_RUN = 16


@triton.jit(do_not_specialize=["count", "token_width", "table_width"])
def _kernel(
    rows,
    slot_tokens,
    slot_tables,
    tokens,
    positions,
    lengths,
    runs,
    tables,
    targets,
    count,
    token_width,
    table_width,
    BLOCK_SIZE: tl.constexpr,
    LONGEST_RUN: tl.constexpr,
    AT_ONCE: tl.constexpr,
):
    row = tl.program_id(0)
    slot = tl.load(rows + row)
    position = tl.load(rows + count + row)
    tl.store(tokens + row, tl.load(slot_tokens + slot * token_width + position).to(tl.int64))
    tl.store(positions + row, position)
    tl.store(lengths + row, (position + 1).to(tl.int32))
    step = tl.arange(0, LONGEST_RUN)
    is_row = row + step < count
    same = tl.load(rows + row + step, mask=is_row, other=-1) == slot
    follows = tl.load(rows + count + row + step, mask=is_row, other=-1) == position + step
    tl.store(runs + row, tl.min(tl.where(same & follows, LONGEST_RUN, step), axis=0))
    source = slot_tables + slot * table_width
    newest = position // BLOCK_SIZE
    target = tl.load(source + newest).to(tl.int64) * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(targets + row, target)
    for first in range(0, newest + 1, AT_ONCE):
        index = first + tl.arange(0, AT_ONCE)
        blocks = tl.load(source + index, mask=index <= newest, other=0)
        tl.store(tables + row.to(tl.int64) * table_width + index, blocks, mask=index <= newest)


def gather_decode_inputs(
    rows: Tensor,  # [2 or more, rows] int64: slots, positions
    slot_tokens: Tensor,  # [slots, tokens] int32
    slot_tables: Tensor,  # [slots, blocks] int32
    block_size: int,
    *,
    tokens: Tensor,  # from here on written: [rows] int64
    positions: Tensor,  # [rows] int64
    lengths: Tensor,  # [rows] int32
    runs: Tensor,  # [rows] int32
    tables: Tensor,  # [rows, blocks] int32, only as far as the row reaches
    targets: Tensor,  # [rows] int64
) -> None:
    """Write the inputs of `rows`, as in `interface.Batch`, for one cache group. All groups write the same tokens,
    positions, lengths and runs."""
    count = rows.shape[1]
    _kernel[(count,)](
        rows,
        slot_tokens,
        slot_tables,
        tokens,
        positions,
        lengths,
        runs,
        tables,
        targets,
        count,
        slot_tokens.shape[1],
        slot_tables.shape[1],
        block_size,
        LONGEST_RUN,
        AT_ONCE,
        num_warps=2,
    )
