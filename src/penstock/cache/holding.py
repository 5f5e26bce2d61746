"""Blocks that no sequence holds while their content travels between two engines (`engine.transfer`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class Holding:
    """Made and released by the manager (`hold_cached`, `hold_missing`, `release_holding`)."""

    blocks: list[dict[int, int]]  # [groups] by index in the chain: the block

    @property
    def num_blocks(self) -> int:
        return sum(map(len, self.blocks))
