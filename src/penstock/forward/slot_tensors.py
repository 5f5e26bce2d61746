"""The permanent device rows of running sequences: token ids and block tables."""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Admit, Extend
from penstock.kernels.upload import put, upload


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
        self._held = [[0] * max_sequences for _ in range(num_groups)]  # [groups][slots]: blocks in the table

    def apply(self, admits: Sequence[Admit], extends: Sequence[Extend]) -> None:
        """Write the changes of a plan."""
        if admits:
            _write(self.tokens, [(admit.slot, 0, admit.tokens) for admit in admits])
        for group, (table, held) in enumerate(zip(self.tables, self._held, strict=True)):
            pieces = []
            for admit in admits:
                blocks = admit.blocks[group]
                pieces.append((admit.slot, 0, blocks + [0] * (held[admit.slot] - len(blocks))))
                held[admit.slot] = len(blocks)
            for extend in extends:
                if extend.group == group:
                    pieces.append((extend.slot, held[extend.slot], extend.blocks))
                    held[extend.slot] += len(extend.blocks)
            if pieces:
                _write(table, pieces)


def _write(rows: Tensor, pieces: list[tuple[int, int, list[int]]]) -> None:
    """Write values from a column of a row on, for all pieces (row, column, values) in one go."""
    # `struct` reads a list in half the time that numpy takes.
    packed = bytearray().join(struct.pack(f"{len(values)}i", *values) for *_, values in pieces)
    flat, new, width = rows.view(-1), np.frombuffer(packed, dtype=np.int32), rows.shape[1]
    first = [(row * width + column, len(values)) for row, column, values in pieces]
    if len(pieces) == 1:
        begin, count = first[0]
        put(flat[begin : begin + count], new)
    else:
        at = np.concatenate([np.arange(begin, begin + count) for begin, count in first])
        flat[upload(at, rows.device)] = upload(new, rows.device)
