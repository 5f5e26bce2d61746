"""The tensors of one quantized linear layer of a Hugging Face checkpoint, checked as they are read: types, dimensions,
and that they fit each other. Errors name the tensor."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import Array
from penstock.model.weights.safetensors import SafetensorsSource
from penstock.model.weights.source import Shape

INTEGERS = ("I32", "I64")


@dataclass(frozen=True, slots=True)
class LayerTensors:
    """By the last part of their names."""

    source: SafetensorsSource
    layer: str
    codes: str  # which of them holds codes

    def has(self, what: str) -> bool:
        return self.name(what) in self.source.shapes

    def name(self, what: str) -> str:
        return f"{self.layer}.{what}"

    def type(self, what: str) -> str:
        return self.source.stored_type(self.name(what))

    def shape(self, what: str) -> Shape:
        return self.source.shapes[self.name(what)]

    def matrix_shape(self, what: str, *types: str) -> tuple[int, int]:
        self._check_type(what, types)
        shape = self.shape(what)
        if len(shape) != 2 or 0 in shape:
            raise self._invalid(what, f"has shape {shape}: it must have two dimensions, and numbers in them")
        return shape[0], shape[1]

    def read(self, what: str, *types: str) -> Array:
        """As it is stored, which is one of these types."""
        self._check_type(what, types)
        return self.source.read_stored(self.name(what))

    def scales(self, what: str) -> Array:
        """In any floating-point type, over the mapped file"""
        return self.source.read(self.name(what), self.shape(what))

    def names(self, *required: str, optional: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Of all tensors of the layer."""
        for what in required:
            if not self.has(what):
                raise self._invalid(what, f"is missing: {self.name(self.codes)} cannot be read without it")
        return tuple(map(self.name, (self.codes, *required, *(what for what in optional if self.has(what)))))

    def check_fit(self, what: str, weights: Shape, *expected: Shape) -> None:
        if self.shape(what) not in expected:
            raise self.misfit(what, weights)

    def check_groups(self, what: str, found: Shape, weights: tuple[int, int]) -> None:
        """Groups are equal parts of the columns. `found`: its shape, rows first."""
        rows, cols = weights
        if len(found) != 2 or found[0] != rows or not 0 < found[1] <= cols or cols % found[1]:
            raise self.misfit(what, weights)

    def group_of(self, what: str, cols: int, groups: int, *, may_be_unused: bool) -> Array | None:
        """[cols]: the group of each input; None if groups are runs of inputs. `may_be_unused`: it has negative numbers
        then."""
        if not self.has(what):
            return None
        found = self.read(what, *INTEGERS)
        if may_be_unused and (found < 0).all():
            return None
        if found.shape != (cols,):
            raise self._invalid(what, f"has shape {found.shape}: it must have the group of each of {cols} inputs")
        if found.min() < 0 or found.max() >= groups:
            raise self._invalid(what, "names groups that are not there")
        return None if np.array_equal(found, np.arange(cols) // -(-cols // groups)) else found

    def misfit(self, what: str, weights: Shape) -> ModelInvalid:
        return self._invalid(what, f"has shape {self.shape(what)}, which does not fit weights of shape {weights}")

    def not_a_scale(self, what: str, value: float) -> ModelInvalid:
        return self._invalid(what, f"is {value}: a scale must be a positive number")

    def _check_type(self, what: str, types: tuple[str, ...]) -> None:
        if self.type(what) not in types:
            raise self._invalid(what, f"has dtype {self.type(what)}: it must be {' or '.join(types)}")

    def _invalid(self, what: str, wrong: str) -> ModelInvalid:
        return ModelInvalid(f"tensor {self.name(what)} {wrong}", param="model")
