"""From the rows of a plan to the tensors a model reads.

The host computes where rows begin and end, in numpy. Tokens and block tables are gathered on the device, the only place
that has the newest tokens: here in torch, in `cuda_inputs` by a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.slot_tensors import SlotTensors
from penstock.kernels.interface import Batch, BlockMap
from penstock.kernels.upload import upload

Counts = np.ndarray[Any, np.dtype[np.int64]]  # [rows]


class TokenInputs(NamedTuple):
    """The per-token inputs of a step: [tokens] int64 each."""

    tokens: Tensor
    positions: Tensor
    targets: tuple[Tensor, ...]  # [cache groups]


class RowLayout:
    """Where the rows of a step begin and end, on the host."""

    def __init__(self, rows: Sequence[Row], block_size: int) -> None:
        self.slots, self.first, self.counts = np.array(
            [(row.slot, row.start, row.count) for row in rows], dtype=np.int64
        ).T
        self.lengths: Counts = self.first + self.counts
        self.starts = np.zeros(len(rows) + 1, dtype=np.int64)
        self.counts.cumsum(out=self.starts[1:])
        self.blocks = -(-int(self.lengths.max()) // block_size)  # of the longest row
        self._num_single = next((index for index, row in enumerate(rows) if row.count > 1), len(rows))

    def upload(self, device: torch.device) -> Tensor:
        """[3 * rows + 1] int32: where rows start and the last one ends, their lengths, their slots."""
        places = np.concatenate((self.starts, self.lengths, self.slots), dtype=np.int32, casting="same_kind")
        return upload(places, device)

    def batch(self, places: Tensor, inputs: TokenInputs, tables: Sequence[Tensor]) -> Batch:
        """`places` as `upload` has it; `tables` [cache groups], each [rows, blocks]."""
        count = len(self.slots)
        return Batch(
            tokens=inputs.tokens,
            positions=inputs.positions,
            starts=places[: count + 1],
            lengths=places[count + 1 : 2 * count + 1],
            maps=tuple(map(BlockMap, tables, inputs.targets)),
            num_rows=count,
            num_single=self._num_single,
            host_starts=self.starts.tolist(),
            host_lengths=self.lengths.tolist(),
        )


def gather(rows: Sequence[Row], slots: SlotTensors) -> Batch:
    """The inputs of a step, all rows packed together."""
    layout, block_size = RowLayout(rows, slots.block_size), slots.block_size
    slot, index = layout.slots.repeat(layout.counts), np.arange(layout.starts[-1])
    position = index + (layout.lengths - layout.starts[1:]).repeat(layout.counts)
    token_at = slot * slots.tokens.shape[1] + position
    block_at = slot * slots.tables[0].shape[1] + position // block_size
    row_slots, positions, tokens, block_index = map(torch.from_numpy, (layout.slots, position, token_at, block_at))
    blocks = [table.take(block_index).to(torch.int64) for table in slots.tables]
    targets = tuple(block.mul_(block_size).add_(positions % block_size) for block in blocks)
    tables = [table[:, : layout.blocks].index_select(0, row_slots) for table in slots.tables]
    inputs = TokenInputs(slots.tokens.take(tokens).to(torch.int64), positions, targets)
    return layout.batch(layout.upload(slots.tokens.device), inputs, tables)
