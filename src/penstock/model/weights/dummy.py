"""Random weights without a checkpoint, for benchmarks."""

from __future__ import annotations

from zlib import crc32

import numpy as np

from penstock.kernels.arrays import Array
from penstock.model.weights.codes import StoredCodes
from penstock.model.weights.map import Format
from penstock.model.weights.source import Region, Shape

# Numbers drawn once; tensors are slices of their endless repetition, because drawing billions takes a minute on a CPU.
# Prime, so that the rows of a matrix differ.
POOL = 4_194_301


class DummySource:
    """Implements `Source`. Matrices are scaled to preserve magnitudes, so that nothing overflows through any number of
    layers; vectors are ones. The same seed gives the same weights."""

    format: Format = "hf"
    shapes = None

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self._pool = np.random.default_rng(seed).standard_normal(POOL, dtype=np.float32)

    def read(self, name: str, shape: Shape, region: Region | None = None) -> Array:
        if len(shape) == 1:
            return np.ones(shape if region is None else region.shape, dtype=np.float32)
        if region is not None:
            return self._read_region(name, shape, region)
        drawn = np.empty(shape[0] * shape[1], dtype=np.float32)
        begin, start = 0, pool_offset(name, self._seed)
        while begin < len(drawn):
            piece = self._pool[start : start + len(drawn) - begin]
            drawn[begin : begin + len(piece)] = piece
            begin, start = begin + len(piece), 0
        drawn *= np.float32(float(shape[1]) ** -0.5)
        return drawn.reshape(shape)

    def _read_region(self, name: str, shape: Shape, region: Region) -> Array:
        assert region.columns is not None
        rows = np.concatenate([np.arange(begin, end) for begin, end in region.rows]) * shape[1]
        places = (pool_offset(name, self._seed) + rows[:, None] + np.arange(*region.columns)) % POOL
        drawn: Array = self._pool[places]
        drawn *= np.float32(float(shape[1]) ** -0.5)
        return drawn

    def stored_type(self, name: str) -> str:
        return "F32"

    def read_blocks(self, name: str, shape: Shape) -> Array:
        raise AssertionError(f"{name} has no blocks")

    def codes(self, name: str) -> StoredCodes | None:
        return None

    def release(self, name: str) -> None:
        pass


def pool_offset(name: str, seed: int) -> int:
    """Where the tensor of this name begins in the pool."""
    return crc32(name.encode(), seed) % POOL
