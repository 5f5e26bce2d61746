"""Where adapters change a model: the products that they add a low-rank delta to.

    y += scale · B·(A·x)        A [rank, in], B [out, rank]

Which adapter a row has, if any, is known only when a step runs: the model's wiring names the place, and the operations
look up the matrices.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.kernels.arrays import Array

# The products of a layer, as architectures name them, and the projections that each consists of, in the order of its
# outputs. An adapter has a delta of its own for each projection.
PRODUCTS = {"qkv": ("q", "k", "v"), "output": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
_PLACES = {product: place for place, product in enumerate(PRODUCTS)}


class LowRank(NamedTuple):
    """The delta of one product."""

    layer: int
    product: str  # a key of PRODUCTS

    @property
    def site(self) -> int:
        """Its number in the model."""
        return self.layer * len(PRODUCTS) + _PLACES[self.product]


class DeltaMatrices(NamedTuple):
    """An adapter's delta of one projection."""

    product: LowRank
    part: int  # which of the product's projections
    offset: int  # of the projection among the outputs of the product
    a: Array  # [rank, in] float32 or float16
    b: Array  # [out, rank], likewise
    scale: float
