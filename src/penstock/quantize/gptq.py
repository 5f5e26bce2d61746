"""GPTQ (Frantar and others, 2022): columns are rounded one after the other, and each one's error is made up for by the
columns that follow, as the inputs of the product allow."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.quantize.round_codes import Codes, Grid

DAMPING = 0.01  # of the mean diagonal, so that the Hessian can be inverted
BLOCK = 128  # columns whose errors reach the columns behind them at once, where there are no groups


def gptq(weight: Tensor, hessian: Tensor, grid: Grid) -> Codes:
    """`hessian`: [cols, cols], the sum of x xᵀ over inputs x of the product."""
    weight = weight.clone()
    rows, cols = weight.shape
    factor = _inverse_factor(hessian, weight)
    codes = torch.empty(rows, cols, dtype=torch.uint8)
    scales, zeros = torch.empty(rows, cols // grid.group), torch.empty(rows, cols // grid.group, dtype=torch.uint8)
    for begin in range(0, cols, grid.group):
        end, number = begin + grid.group, begin // grid.group
        scale, zero = grid.fit(weight[:, begin:end])
        scales[:, number], zeros[:, number] = scale[:, 0], zero[:, 0].to(torch.uint8)

        def nearest(column: Tensor, place: int, scale: Tensor = scale[:, 0], zero: Tensor = zero[:, 0]) -> Tensor:
            code = grid.round(column, scale, zero)
            codes[:, place] = code.to(torch.uint8)
            return (code - zero) * scale

        _round_columns(weight, factor, begin, end, nearest)
    return Codes(codes, scales, zeros)


def round_rows(weight: Tensor, hessian: Tensor, nearest: Callable[[Tensor], Tensor]) -> Tensor:
    """[rows, cols] rounded by `nearest` [rows] -> [rows], which has no groups: so columns with large inputs come first,
    and many are left to make up for their errors."""
    order = hessian.diagonal().argsort(descending=True)
    weight = weight[:, order]
    factor = _inverse_factor(hessian[order][:, order], weight)
    for begin in range(0, weight.shape[1], BLOCK):
        end = min(begin + BLOCK, weight.shape[1])
        _round_columns(weight, factor, begin, end, lambda column, _: nearest(column))
    return weight[:, order.argsort()]


def _round_columns(
    weight: Tensor, factor: Tensor, begin: int, end: int, nearest: Callable[[Tensor, int], Tensor]
) -> None:
    """Columns begin .. end - 1, in place; all behind them are changed."""
    errors = torch.empty(len(weight), end - begin)
    for column in range(begin, end):
        rounded = nearest(weight[:, column], column)
        error = (weight[:, column] - rounded) / factor[column, column]
        weight[:, column + 1 : end] -= torch.outer(error, factor[column, column + 1 : end])
        weight[:, column] = rounded
        errors[:, column - begin] = error
    weight[:, end:] -= errors @ factor[begin:end, end:]


def _inverse_factor(hessian: Tensor, weight: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse. Inputs that are always 0 are given no weight."""
    hessian = hessian.double()
    dead = hessian.diagonal() == 0
    weight[:, dead] = 0
    hessian = hessian + torch.diag(dead.double() + DAMPING * hessian.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()
