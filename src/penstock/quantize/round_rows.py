"""8 bits with one scale for each row: the scale that loses least, and codes rounded to nearest or, with the Hessian of
the inputs, so that columns make up for each other's errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.quantize.gptq import round_rows

E4M3_LARGEST = 448.0
LEAST_SCALE = 2.0**-24


@dataclass(frozen=True, slots=True)
class RowFormat:
    dtype: torch.dtype
    largest: float
    nearest: Callable[[Tensor], Tensor]  # of numbers in units of the scale
    factors: tuple[float, ...]  # of the scale that reaches the largest number: those that are tried


def _nearest_int8(x: Tensor) -> Tensor:
    return x.round().clamp(-127, 127)


def _nearest_e4m3(x: Tensor) -> Tensor:
    return x.clamp(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn).float()


ROW_FORMATS = {
    # Smaller scales clip the largest numbers, and round the others better.
    "int8": RowFormat(torch.int8, 127.0, _nearest_int8, tuple(1 - step / 32 for step in range(13))),
    # Larger ones only move all numbers against the grid, whose steps follow their size.
    "fp8": RowFormat(torch.float8_e4m3fn, E4M3_LARGEST, _nearest_e4m3, tuple(2.0 ** (step / 16) for step in range(16))),
}


def store_rows(form: RowFormat, weight: Tensor, hessian: Tensor | None) -> dict[str, Tensor]:
    """The tensors of a layer, by the last part of their names. `hessian`: of the product's inputs, None: unknown."""
    scales = _best_scales(form, weight, None if hessian is None else hessian.diagonal())
    if hessian is None:
        codes = form.nearest(weight / scales)
    else:
        row_scales = scales[:, 0]
        rounded = round_rows(weight, hessian, lambda column: form.nearest(column / row_scales) * row_scales)
        codes = form.nearest(rounded / scales)  # nearest of what is on the grid already: itself
    return {"weight": codes.to(form.dtype), "weight_scale": scales}


def _best_scales(form: RowFormat, weight: Tensor, importance: Tensor | None) -> Tensor:
    """[rows, 1]: of all that are tried those with the least squared error, by column as important as its inputs are
    large."""
    reaching = (weight.abs().amax(dim=1, keepdim=True) / form.largest).clamp(min=LEAST_SCALE)
    best = torch.empty_like(reaching)
    least = torch.full_like(reaching, float("inf"))
    for factor in form.factors:
        scales = (reaching * factor).half().float().clamp(min=LEAST_SCALE)  # many readers keep 16 bits
        squares = (form.nearest(weight / scales) * scales - weight).square()
        if importance is not None:
            squares = squares * importance
        error = squares.sum(dim=1, keepdim=True)
        best = torch.where(error < least, scales, best)
        least = torch.minimum(error, least)
    return best
