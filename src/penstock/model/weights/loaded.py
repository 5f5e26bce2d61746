"""The parameters of a model, as its layers take them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeVar

from penstock.kernels.weight import Weight

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Weights:
    """Matrices and tables, each in its form, and vectors: norms (float32) and biases. By name."""

    def __init__(self, matrices: Mapping[str, Weight], vectors: Mapping[str, Tensor]) -> None:
        self.matrices, self.vectors = matrices, vectors

    def layer(self, number: int) -> Weights:
        """Those of one layer, by what follows its number."""
        prefix = f"layers.{number}."

        def of_layer(parameters: Mapping[str, T]) -> dict[str, T]:
            return {name.removeprefix(prefix): one for name, one in parameters.items() if name.startswith(prefix)}

        return Weights(of_layer(self.matrices), of_layer(self.vectors))

    @property
    def num_bytes(self) -> int:
        """Of all; a table that is the head as well counts once."""
        matrices = {id(weight): weight.num_bytes for weight in self.matrices.values()}
        return sum(matrices.values()) + sum(vector.nbytes for vector in self.vectors.values())
