"""The permanent rows of running sequences on a device of torch's: token ids and block tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Admit, Extend
from penstock.forward.slot_changes import Piece, SlotChanges
from penstock.kernels.upload import put, upload


class SlotRows(Protocol):
    """What steps read of slots."""

    @property
    def tokens(self) -> Tensor:
        """[slots, context + 1] int32"""

    @property
    def tables(self) -> Sequence[Tensor]:
        """[cache groups] of [slots, blocks] int32"""

    @property
    def block_size(self) -> int: ...


class SlotTensors:
    """State that steps gather their inputs from; samplers write drawn tokens there. Beyond a sequence's own tokens its
    row holds stale ones of earlier sequences; beyond its own blocks the tables are 0."""

    def __init__(
        self, max_sequences: int, context: int, block_size: int, num_groups: int, device: torch.device
    ) -> None:
        self.block_size = block_size
        # One more than the context: a step planned ahead may draw a token that turns out to be surplus.
        self.tokens = torch.zeros(max_sequences, context + 1, dtype=torch.int32, device=device)
        width = -(-(context + 1) // block_size)
        self.tables = tuple(
            torch.zeros(max_sequences, width, dtype=torch.int32, device=device) for _ in range(num_groups)
        )
        self._changes = SlotChanges(max_sequences, num_groups)

    def capacity(self, slot: int) -> int:
        """Positions of a sequence that have blocks, in the first cache group."""
        return self._changes.held(0, slot) * self.block_size

    def apply(self, admits: Sequence[Admit], extends: Sequence[Extend]) -> None:
        """Write the changes of a plan."""
        if admits:
            _write(self.tokens, self._changes.tokens(admits))
        for group, table in enumerate(self.tables):
            if pieces := self._changes.blocks(group, admits, extends):
                _write(table, pieces)


def _write(rows: Tensor, pieces: list[Piece]) -> None:
    """All pieces in one go."""
    packed = bytearray().join(piece.packed() for piece in pieces)
    flat, new, width = rows.view(-1), np.frombuffer(packed, dtype=np.int32), rows.shape[1]
    first = [(row * width + column, len(values)) for row, column, values in pieces]
    if len(pieces) == 1:
        begin, count = first[0]
        put(flat[begin : begin + count], new)
    else:
        at = np.concatenate([np.arange(begin, begin + count) for begin, count in first])
        flat[upload(at, rows.device)] = upload(new, rows.device)
