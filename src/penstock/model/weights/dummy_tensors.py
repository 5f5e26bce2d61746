"""Weights without a checkpoint that are made on the device: random ones for benchmarks, which need not be copied there,
and blank ones for precompiling, which needs shapes alone. Vectors are small, and made on the host."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.kernels.arrays import Array
from penstock.kernels.interface import as_array
from penstock.model.weights.blank import BlankLayers
from penstock.model.weights.codes import StoredCodes, blank_rows
from penstock.model.weights.dummy import POOL, pool_offset
from penstock.model.weights.map import Format
from penstock.model.weights.source import Region, Shape


class DeviceDummySource:
    """Implements `Source`, as `dummy.DummySource` does."""

    format: Format = "hf"
    shapes = None

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        self._seed = seed
        generator = torch.Generator(device).manual_seed(seed)
        self._pool = torch.randn(POOL, generator=generator, device=device)

    def read(self, name: str, shape: Shape, region: Region | None = None) -> Array:
        if len(shape) == 1:
            return torch.ones(shape if region is None else region.shape).numpy()
        drawn = torch.empty(shape[0] * shape[1], device=self._pool.device)
        begin, start = 0, pool_offset(name, self._seed)
        while begin < len(drawn):
            piece = self._pool[start : start + len(drawn) - begin]
            drawn[begin : begin + len(piece)] = piece
            begin, start = begin + len(piece), 0
        values = as_array(drawn.mul_(float(shape[1]) ** -0.5).view(shape))
        return values if region is None else region.of(values)

    def stored_type(self, name: str) -> str:
        return "F32"

    def read_blocks(self, name: str, shape: Shape) -> Array:
        raise AssertionError(f"{name} has no blocks")

    def codes(self, name: str) -> StoredCodes | None:
        return None

    def release(self, name: str) -> None:
        pass


class BlankSource:
    """Implements `Source`: zeros that take no memory. What `DenseForm` and `CodedForm` make of them has the types,
    shapes and layouts of real weights: that is all the choice of a kernel depends on."""

    shapes = None

    def __init__(self, device: torch.device, like: BlankLayers | None = None) -> None:
        """`like`: layouts of the matrices that are quantized; None: all are floats."""
        self._device = device
        self._layouts = {} if like is None else like.layouts
        self.format: Format = "hf" if like is None else like.format

    def read(self, name: str, shape: Shape, region: Region | None = None) -> Array:
        shape = shape if region is None else region.shape
        if len(shape) == 1:
            return torch.zeros(shape).numpy()
        zero: Tensor = torch.zeros(1, device=self._device)
        return as_array(zero.expand(shape))

    def stored_type(self, name: str) -> str:
        return "F32"

    def read_blocks(self, name: str, shape: Shape) -> Array:
        raise AssertionError(f"{name} has no blocks")

    def codes(self, name: str) -> StoredCodes | None:
        if name not in self._layouts:
            return None
        cols, layout = self._layouts[name]
        return StoredCodes(layout, lambda rows: blank_rows(name, rows.end - rows.begin, cols, layout))

    def release(self, name: str) -> None:
        pass
