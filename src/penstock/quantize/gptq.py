"""GPTQ (Frantar and others, 2022): columns are rounded one after the other, and each one's error is made up for by the
columns that follow, as the inputs of the product allow."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.quantize.round_codes import Codes, Grid

DAMPING = 0.01  # of the mean diagonal, so that the Hessian can be inverted


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
        errors = torch.empty(rows, grid.group)
        for column in range(begin, end):
            code = grid.round(weight[:, column : column + 1], scale, zero)
            codes[:, column] = code[:, 0].to(torch.uint8)
            error = (weight[:, column] - ((code - zero) * scale)[:, 0]) / factor[column, column]
            weight[:, column:end] -= torch.outer(error, factor[column, column:end])
            errors[:, column - begin] = error
        weight[:, end:] -= errors @ factor[begin:end, end:]
    return Codes(codes, scales, zeros)


def _inverse_factor(hessian: Tensor, weight: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse. Inputs that are always 0 are given no weight."""
    hessian = hessian.double()
    dead = hessian.diagonal() == 0
    weight[:, dead] = 0
    hessian = hessian + torch.diag(dead.double() + DAMPING * hessian.diagonal().mean())
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(hessian))
    factor: Tensor = torch.linalg.cholesky(inverse, upper=True)
    return factor.float()
