"""Weights that codes stand for, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.kernels.coded import Code, CodedMatrix, CodedRows, codes_of

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)


def dequantize(matrix: CodedMatrix) -> Tensor:
    """[rows, cols] float32"""
    weights = torch.cat([_weights(part) for part in matrix.parts])
    if matrix.order is None:
        return weights
    ordered = torch.empty_like(weights)
    ordered[:, matrix.order] = weights
    return ordered


def _weights(part: CodedRows) -> Tensor:
    code, group, _, shift = part.coding
    codes = codes_of(part)
    values = torch.tensor(E2M1, device=codes.device)[codes.long()] if code is Code.E2M1 else codes.float()

    def by_column(factors: Tensor) -> Tensor:
        wide = factors.float().repeat_interleave(group or part.cols, dim=1)
        return wide[:, : part.cols]

    if shift == "offsets":
        assert part.shifts is not None
        return values * by_column(part.scales) + by_column(part.shifts)
    zeros = by_column(part.shifts) if part.shifts is not None else code.zero
    return (values - zeros) * by_column(part.scales)
