"""From the rows of a plan to the tensors a model reads.

Where rows begin and end is worked out on the host, in numpy. What lies there is gathered on the device: the newest
tokens are known nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.slots import Slots
from penstock.kernels.interface import Batch, BlockMap
from penstock.kernels.upload import upload

Numbers = np.ndarray[Any, np.dtype[np.int64]]  # [rows]


class Inputs(NamedTuple):
    """What a step has of each token, or where that is to be written: [tokens] int64, all of them."""

    tokens: Tensor
    positions: Tensor
    targets: tuple[Tensor, ...]  # [cache groups]


def gather(rows: Sequence[Row], slots: Slots, into: Inputs | None = None) -> Batch:
    """The inputs of a step, all rows packed together. On CUDA what there is of each token is written `into` something,
    if that is given."""
    count = len(rows)
    row_slots, first, counts = np.array([(row.slot, row.start, row.count) for row in rows], dtype=np.int64).T
    lengths = first + counts
    starts = np.zeros(count + 1, dtype=np.int64)
    counts.cumsum(out=starts[1:])
    places = upload(
        np.concatenate((starts, lengths, row_slots), dtype=np.int32, casting="same_kind"), slots.tokens.device
    )
    blocks = -(-int(lengths.max()) // slots.block_size)
    if slots.tokens.is_cpu:
        inputs, tables = _by_torch(slots, row_slots, first, counts, blocks)
    else:
        inputs, tables = _by_kernel(slots, places, counts, blocks, into)
    return Batch(
        tokens=inputs.tokens,
        positions=inputs.positions,
        starts=places[: count + 1],
        lengths=places[count + 1 : 2 * count + 1],
        maps=tuple(map(BlockMap, tables, inputs.targets)),
        num_rows=count,
        num_single=next((index for index, row in enumerate(rows) if row.count > 1), count),
        host_starts=starts.tolist(),
        host_lengths=lengths.tolist(),
    )


def _by_torch(
    slots: Slots, row_slots: Numbers, first: Numbers, counts: Numbers, blocks: int
) -> tuple[Inputs, list[Tensor]]:
    """And the tables, `blocks` wide, [rows, blocks] of each cache group."""
    slot, index = row_slots.repeat(counts), np.arange(counts.sum())
    position = index + (first + counts - counts.cumsum()).repeat(counts)
    token_at = slot * slots.tokens.shape[1] + position
    block_at = slot * slots.tables[0].shape[1] + position // slots.block_size
    rows, positions, tokens, block_index = map(torch.from_numpy, (row_slots, position, token_at, block_at))
    held = [table.take(block_index).to(torch.int64) for table in slots.tables]
    targets = tuple(block.mul_(slots.block_size).add_(positions % slots.block_size) for block in held)
    tables = [table[:, :blocks].index_select(0, rows) for table in slots.tables]
    return Inputs(slots.tokens.take(tokens).to(torch.int64), positions, targets), tables


def _by_kernel(
    slots: Slots, places: Tensor, counts: Numbers, blocks: int, into: Inputs | None
) -> tuple[Inputs, list[Tensor]]:
    """The same. `places` are those of `kernels.cuda.chunk_inputs`."""
    from penstock.kernels.cuda.chunk_inputs import gather

    device, total = places.device, int(counts.sum())
    if into is None:
        tokens, positions = (torch.empty(total, dtype=torch.int64, device=device) for _ in range(2))
        # Torch reads those, too, and is to find a place that exists even if the kernel is only noted.
        targets = tuple(torch.zeros_like(tokens) for _ in slots.tables)
        into = Inputs(tokens, positions, targets)
    tables = [torch.empty(len(counts), blocks, dtype=torch.int32, device=device) for _ in slots.tables]
    for slot_table, table, written in zip(slots.tables, tables, into.targets, strict=True):
        gather(
            places,
            slots.tokens,
            slot_table,
            slots.block_size,
            int(counts.max()),
            tokens=into.tokens,
            positions=into.positions,
            targets=written,
            tables=table,
        )
    return into, tables
