"""The inputs of a step with prompt chunks, gathered from the slots. The reference: `forward.inputs.gather`."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, wait

AT_ONCE = 1024


@triton.jit(do_not_specialize=["rows", "token_width", "table_width", "blocks"])
def _kernel(
    places,
    slot_tokens,
    slot_tables,
    tokens,
    positions,
    targets,
    tables,
    rows,
    token_width,
    table_width,
    blocks,
    BLOCK_SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    """One program takes some tokens of a row and some of its blocks. No `let_next_begin`: the next kernel may read at
    once what is written here."""
    wait(OVERLAP)
    row = tl.program_id(0)
    start = tl.load(places + row)
    count = tl.load(places + row + 1) - start
    first = tl.load(places + rows + 1 + row) - count
    slot = tl.load(places + 2 * rows + 1 + row).to(tl.int64)
    table = slot_tables + slot * table_width

    begin = tl.program_id(1) * AT_ONCE
    index = begin + tl.arange(0, AT_ONCE)
    real = index < count
    position = first + index
    token = tl.load(slot_tokens + slot * token_width + position, mask=real, other=0)
    block = tl.load(table + position // BLOCK_SIZE, mask=real, other=0).to(tl.int64)
    tl.store(tokens + start + index, token.to(tl.int64), mask=real)
    tl.store(positions + start + index, position.to(tl.int64), mask=real)
    tl.store(targets + start + index, block * BLOCK_SIZE + position % BLOCK_SIZE, mask=real)
    for column in range(begin, blocks, tl.num_programs(1) * AT_ONCE):
        at = column + tl.arange(0, AT_ONCE)
        held = tl.load(table + at, mask=at < blocks, other=0)
        tl.store(tables + row.to(tl.int64) * blocks + at, held, mask=at < blocks)


_launch = Launcher(_kernel)


def gather_chunk_inputs(
    places: Tensor,  # [3 * rows + 1] int32: where rows start and the last one ends, their lengths, their slots
    slot_tokens: Tensor,  # [slots, tokens] int32
    slot_tables: Tensor,  # [slots, blocks] int32
    block_size: int,
    longest: int,  # tokens of a row
    *,
    tokens: Tensor,  # from here on written: [tokens] int64
    positions: Tensor,  # [tokens] int64
    targets: Tensor,  # [tokens] int64
    tables: Tensor,  # [rows, blocks] int32
) -> None:
    """Write the inputs of the rows, as in `interface.Batch`, for one cache group. All groups write the same tokens and
    positions."""
    rows, blocks = tables.shape
    arguments = (places, slot_tokens, slot_tables, tokens, positions, targets, tables)
    _launch(
        (rows, -(-longest // AT_ONCE), 1),
        torch.int32,
        (*arguments, rows, slot_tokens.shape[1], slot_tables.shape[1], blocks),
        (block_size, AT_ONCE),
        num_warps=4,
    )
