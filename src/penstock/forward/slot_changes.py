"""What a plan writes to the rows of the slots, wherever these are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

from penstock.flow import Admit, Extend


class Piece(NamedTuple):
    """Values that follow each other in a row, from a column on."""

    row: int
    column: int
    values: list[int]

    def packed(self) -> bytes:
        # `struct` reads a list in half the time that numpy takes.
        return struct.pack(f"{len(self.values)}i", *self.values)


class SlotChanges:
    """Knows how many blocks each row of a block table has."""

    def __init__(self, max_sequences: int, num_groups: int) -> None:
        self._held = [[0] * max_sequences for _ in range(num_groups)]  # [groups][slots]

    def held(self, group: int, slot: int) -> int:
        """Blocks in the table."""
        return self._held[group][slot]

    @staticmethod
    def tokens(admits: Sequence[Admit]) -> list[Piece]:
        return [Piece(admit.slot, 0, admit.tokens) for admit in admits]

    def blocks(self, group: int, admits: Sequence[Admit], extends: Sequence[Extend]) -> list[Piece]:
        """Beyond a sequence's own blocks its row is zeroed."""
        held, pieces = self._held[group], []
        for admit in admits:
            blocks = admit.blocks[group]
            pieces.append(Piece(admit.slot, 0, blocks + [0] * (held[admit.slot] - len(blocks))))
            held[admit.slot] = len(blocks)
        for extend in extends:
            if extend.group == group:
                pieces.append(Piece(extend.slot, held[extend.slot], extend.blocks))
                held[extend.slot] += len(extend.blocks)
        return pieces
