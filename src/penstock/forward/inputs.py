"""From the rows of a plan to the tensors a model reads.

Where things lie in the slots is worked out on the host, in numpy, and goes to the device in two arrays. What lies there
is gathered on the device: the newest tokens are known nowhere else.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Row
from penstock.forward.slots import Slots
from penstock.kernels.interface import Batch, BlockMap
from penstock.kernels.upload import upload


def gather(rows: Sequence[Row], slots: Slots) -> Batch:
    """The inputs of a step, all rows packed together."""
    count, block_size, device = len(rows), slots.block_size, slots.tokens.device
    row_slots, first, counts = np.array([(row.slot, row.start, row.count) for row in rows], dtype=np.int64).T
    lengths = first + counts
    starts = np.zeros(count + 1, dtype=np.int64)
    counts.cumsum(out=starts[1:])
    singles = next((index for index, row in enumerate(rows) if row.count > 1), count)
    slot, position = row_slots, first  # [tokens]
    if singles < count:
        slot = row_slots.repeat(counts)
        position = np.arange(starts[-1]) + (first - starts[:-1]).repeat(counts)
    token_at = slot * slots.tokens.shape[1] + position
    block_at = slot * slots.tables[0].shape[1] + position // block_size
    offset = position % block_size

    small = upload(np.concatenate((starts, lengths), dtype=np.int32, casting="same_kind"), device)
    large = upload(np.concatenate((row_slots, position, token_at, block_at, offset)), device)
    sizes = (count, *[len(position)] * 4)
    row_slot, positions, token_index, block_index, offsets = large.split_with_sizes(sizes)
    blocks = -(-int(lengths.max()) // block_size)

    def block_map(table: Tensor) -> BlockMap:
        block = table.take(block_index).to(torch.int64)
        return BlockMap(
            tables=table[:, :blocks].index_select(0, row_slot), targets=block.mul_(block_size).add_(offsets)
        )

    return Batch(
        tokens=slots.tokens.take(token_index).to(torch.int64),
        positions=positions,
        starts=small[: count + 1],
        lengths=small[count + 1 :],
        maps=tuple(map(block_map, slots.tables)),
        num_rows=count,
        num_single=singles,
        host_starts=starts.tolist(),
        host_lengths=lengths.tolist(),
    )
