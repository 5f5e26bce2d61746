"""The permanent rows of running sequences for the native kernels: token ids and block tables, in numpy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from penstock.flow import Admit, Extend
from penstock.forward.slot_changes import Piece, SlotChanges
from penstock.kernels.arrays import Array


class SlotArrays:
    """As `slot_tensors.SlotTensors`."""

    def __init__(self, max_sequences: int, context: int, block_size: int, num_groups: int) -> None:
        self.block_size = block_size
        self.tokens: Array = np.zeros((max_sequences, context + 1), dtype=np.int32)
        width = -(-(context + 1) // block_size)
        self.tables = tuple(np.zeros((max_sequences, width), dtype=np.int32) for _ in range(num_groups))
        self._changes = SlotChanges(max_sequences, num_groups)

    def apply(self, admits: Sequence[Admit], extends: Sequence[Extend]) -> None:
        """Write the changes of a plan."""
        _write(self.tokens, self._changes.tokens(admits))
        for group, table in enumerate(self.tables):
            _write(table, self._changes.blocks(group, admits, extends))


def _write(rows: Array, pieces: list[Piece]) -> None:
    for piece in pieces:
        row, column, values = piece
        rows[row, column : column + len(values)] = np.frombuffer(piece.packed(), dtype=np.int32)
