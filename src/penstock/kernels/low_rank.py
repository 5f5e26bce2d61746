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
MOST_PARTS = max(map(len, PRODUCTS.values()))
TABLES = ("embed", "head")  # the products with the vocabulary, beside the layers
_PLACES = {product: place for place, product in enumerate(PRODUCTS)}


class LowRank(NamedTuple):
    """The delta of one product."""

    layer: int | None  # None: one of TABLES
    product: str  # a key of PRODUCTS, or one of TABLES

    @property
    def projections(self) -> tuple[str, ...]:
        return (self.product,) if self.layer is None else PRODUCTS[self.product]

    @property
    def site(self) -> int:
        """Its number in the model."""
        if self.layer is None:
            return TABLES.index(self.product)
        return len(TABLES) + self.layer * len(PRODUCTS) + _PLACES[self.product]


# Of the embedding x is one-hot: A has a column for each token. A model whose head is its embedding has both all the
# same, and neither changes the other.
EMBEDDING = LowRank(None, "embed")
HEAD = LowRank(None, "head")


def num_sites(num_layers: int) -> int:
    return len(TABLES) + num_layers * len(PRODUCTS)


class DeltaMatrices(NamedTuple):
    """An adapter's delta of one projection."""

    product: LowRank
    part: int  # which of the product's projections
    offset: int  # of the projection among the outputs of the product
    a: Array  # [rank, in] float32 or float16
    b: Array  # [out, rank], likewise
    scale: float
