"""Weights without a checkpoint: random ones for benchmarks, blank ones for precompiling, which needs shapes alone."""

from __future__ import annotations

from zlib import crc32

import torch
from torch import Tensor

from penstock.model.weights.map import Format
from penstock.model.weights.safetensors import DTYPES
from penstock.model.weights.source import Shape
from penstock.store.gguf import TENSOR_TYPES

# Numbers drawn once; tensors are slices of their endless repetition, because drawing billions takes a minute on a CPU.
# Prime, so that the rows of a matrix differ.
POOL = 4_194_301


class DummySource:
    """Implements `Source`. Matrices are scaled to preserve magnitudes, so that nothing overflows through any number of
    layers; vectors are ones. The same seed and device give the same weights."""

    format: Format = "hf"
    shapes = None

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        self._seed = seed
        generator = torch.Generator(device).manual_seed(seed)
        self._pool = torch.randn(POOL, generator=generator, device=device)

    def read(self, name: str, shape: Shape) -> Tensor:
        if len(shape) == 1:
            return torch.ones(shape, device=self._pool.device)
        drawn = torch.empty(shape[0] * shape[1], device=self._pool.device)
        begin, start = 0, crc32(name.encode(), self._seed) % POOL
        while begin < len(drawn):
            piece = self._pool[start : start + len(drawn) - begin]
            drawn[begin : begin + len(piece)] = piece
            begin, start = begin + len(piece), 0
        return drawn.mul_(float(shape[1]) ** -0.5).view(shape)

    def stored_type(self, name: str) -> str:
        return "F32"

    def read_blocks(self, name: str, shape: Shape) -> Tensor:
        raise AssertionError(f"{name} has no blocks")


class BlankSource:
    """Implements `Source`: zeros of any type that checkpoints have, which take no memory. What `form` makes of them has
    the types, shapes and layouts of real weights: that is all the choice of a kernel depends on."""

    format: Format = "hf"
    shapes = None

    def __init__(self, device: torch.device, stored: str = "F32") -> None:
        self._device, self._stored = device, stored

    def read(self, name: str, shape: Shape) -> Tensor:
        return self._zeros(shape, DTYPES.get(self._stored, torch.float32))

    def stored_type(self, name: str) -> str:
        return self._stored

    def read_blocks(self, name: str, shape: Shape) -> Tensor:
        kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == self._stored)
        row_bytes = shape[1] // kind.block_elements * kind.block_bytes
        return self._zeros((shape[0], row_bytes), torch.uint8)

    def _zeros(self, shape: Shape, dtype: torch.dtype) -> Tensor:
        return torch.zeros(1, dtype=dtype, device=self._device).expand(shape)
