"""The rows of a step grouped by adapter, as `kernels.cuda.low_rank` takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from penstock.forward.device_adapters import DeviceAdapter
from penstock.kernels.cuda.low_rank import FEW, MANY, DeltaMemory, StepDeltas, Tiles
from penstock.kernels.upload import upload

Numbers = np.ndarray[Any, np.dtype[np.int32]]  # [rows] of adapters in the table of `DeltaMemory`; 0: none

# Rows from which on tiles are for tensor cores: fewer of them read x through registers faster.
MANY_FROM = 256


def numbers_of(owners: Sequence[DeviceAdapter | None], counts: Sequence[int]) -> Numbers:
    """[tokens]; `counts` [rows] of their tokens."""
    numbers = np.array([0 if one is None else one.number for one in owners], dtype=np.int32)
    return numbers.repeat(counts)


def plan(numbers: Numbers, rows: int) -> tuple[Numbers, Numbers]:
    """`Tiles.order`, and `Tiles.tiles` of up to `rows` rows."""
    order = np.argsort(numbers, kind="stable").astype(np.int32)
    owner = numbers[order]
    begins = np.flatnonzero(np.diff(owner, prepend=-1))  # of each adapter's rows
    sizes = np.diff(begins, append=len(owner))
    within = np.arange(len(owner)) - begins.repeat(sizes)
    first = np.flatnonzero(within % rows == 0)
    count = np.minimum(sizes.repeat(sizes)[first] - within[first], rows)
    return order, np.stack((owner[first], first, count), axis=1).astype(np.int32)


def tiles(numbers: Numbers, device: torch.device) -> Tiles:
    rows = MANY if len(numbers) >= MANY_FROM else FEW
    order, planned = plan(numbers, rows)
    uploaded = upload(np.concatenate((planned.ravel(), order)), device)
    return Tiles(uploaded[planned.size :], uploaded[: planned.size].view(-1, 3), rows)


def step_deltas(memory: DeltaMemory, numbers: Numbers, wanted: Sequence[int] | None = None) -> StepDeltas | None:
    """Of packed tokens with these adapters; None: no token has one. `wanted`: those that are computed beyond the last
    attention; None: all."""
    if not numbers.any():
        return None
    device = memory.table.device
    few = None if wanted is None else tiles(numbers[list(wanted)], device)
    return StepDeltas(memory, tiles(numbers, device), few, len(numbers))


class GraphTiles:
    """Tiles at a fixed place, which CUDA graphs of several sizes read."""

    def __init__(self, most: int, device: torch.device) -> None:
        """`most` rows of a graph."""
        self._places = torch.zeros(4 * most, dtype=torch.int32, device=device)

    def of(self, size: int) -> Tiles:
        """Of a graph of so many rows."""
        return Tiles(self._places[3 * size : 4 * size], self._places[: 3 * size].view(size, 3), FEW)

    def without_adapters(self, size: int) -> Tiles:
        """The same for its capture. Each row is in a tile, as kernels write only rows that are: else the graph would
        compute then with memory that was never written."""
        self.place(size).copy_(torch.from_numpy(self.packed(np.zeros(size, dtype=np.int32), size)))
        return self.of(size)

    def place(self, size: int) -> Tensor:
        """Where `packed` is put."""
        return self._places[: 4 * size]

    @staticmethod
    def packed(numbers: Numbers, size: int) -> Numbers:
        """Those of the first rows; the others are padding, and have no adapter."""
        padded = np.zeros(size, dtype=np.int32)
        padded[: len(numbers)] = numbers
        order, planned = plan(padded, FEW)
        packed = np.zeros(4 * size, dtype=np.int32)
        packed[: planned.size] = planned.ravel()
        packed[3 * size :] = order
        return packed
