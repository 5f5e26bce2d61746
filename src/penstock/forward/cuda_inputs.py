"""The inputs of a step that is no decode graph, gathered by a kernel. The reference: `forward.inputs.gather`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from penstock.flow import Row
from penstock.forward.inputs import RowLayout, TokenInputs
from penstock.forward.slot_tensors import SlotRows
from penstock.kernels.cuda.chunk_inputs import gather_chunk_inputs
from penstock.kernels.interface import Batch


def gather(rows: Sequence[Row], slots: SlotRows, into: TokenInputs | None = None) -> Batch:
    """`into`: where to write the per-token inputs; None: to new tensors."""
    layout = RowLayout(rows, slots.block_size)
    device, total = slots.tokens.device, int(layout.starts[-1])
    places = layout.upload(device)
    if into is None:
        tokens, positions = (torch.empty(total, dtype=torch.int64, device=device) for _ in range(2))
        # Zeros: torch indexes with them even if the kernel is not launched but only precompiled.
        targets = tuple(torch.zeros_like(tokens) for _ in slots.tables)
        into = TokenInputs(tokens, positions, targets)
    tables = [torch.empty(len(rows), layout.blocks, dtype=torch.int32, device=device) for _ in slots.tables]
    for slot_table, table, targets_of in zip(slots.tables, tables, into.targets, strict=True):
        gather_chunk_inputs(
            places,
            slots.tokens,
            slot_table,
            slots.block_size,
            int(layout.counts.max()),
            tokens=into.tokens,
            positions=into.positions,
            targets=targets_of,
            tables=table,
        )
    return layout.batch(places, into, tables)
