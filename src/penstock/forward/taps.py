"""States of the target that draft heads read: the residual stream before some layers, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
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
    states = torch.empty(len(batch.tokens), len(taps) * width, dtype=pages[0].keys.dtype, device=batch.tokens.device)

    def tap(number: int, x: Tensor) -> None:
        if number in taps:
            place = taps.index(number) * width
            states[:, place : place + width] = x

    return model.forward(ops, batch, pages, tap), states
