"""States of the target that draft heads read: the residual stream before some layers, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

from penstock.kernels.interface import Batch, Operations, Pages
from penstock.speculate.proposer import Taps

if TYPE_CHECKING:
    from penstock.forward.backend import Model


def tapped_forward(
    model: Model, ops: Operations, batch: Batch, pages: Sequence[Pages], taps: Taps | None
) -> tuple[Tensor, Tensor]:
    """Hidden states after the final norm, and those of the taps, of all tokens; without taps the former twice."""
    if not taps:
        hidden = model.forward(ops, batch, pages)
        return hidden, hidden
    width = model.spec.hidden_size
    states: list[Tensor] = []

    def tap(number: int, x: Tensor) -> None:
        if number in taps:
            if not states:
                states.append(x.new_empty(len(x), len(taps) * width))
            place = taps.index(number) * width
            states[0][:, place : place + width] = x

    hidden = model.forward(ops, batch, pages, tap)
    return hidden, states[0]
