"""What a layer reads of a step, beside the residual stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from penstock.kernels.interface import Batch, Pages

if TYPE_CHECKING:
    from torch import Tensor


class LayerStep(NamedTuple):
    """A step's inputs, as one layer reads them."""

    batch: Batch
    pages: Pages  # of this layer
    logits_indices: Tensor | None = None  # in the last layer: packed tokens whose hidden states are read; None: all

    def select(self, mixed: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        """The tokens to compute beyond attention: in the last layer only those whose hidden states are read."""
        indices = self.logits_indices
        return (mixed, residual) if indices is None else (mixed[indices], residual[indices])
