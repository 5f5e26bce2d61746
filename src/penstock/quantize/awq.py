"""AWQ (Lin and others, 2023): input channels with large inputs are multiplied before rounding, which makes their
relative error small, and what gives those inputs is divided by the same factors. The function does not change."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.quantize.round_codes import Grid, round_to_nearest

STEPS = 20  # exponents that are tried, from 0 on


def best_factors(weights: Sequence[Tensor], mean_input: Tensor, hessian: Tensor, grid: Grid) -> Tensor:
    """[cols]: the factors for the inputs of products that share them, as those of q, k and v. Among powers of the mean
    absolute input they give the smallest error of the outputs."""
    best, least = torch.ones_like(mean_input), float("inf")
    for step in range(STEPS):
        factors = mean_input.clamp(min=1e-4).pow(step / STEPS)
        factors = factors / (factors.max() * factors.min()).sqrt()
        error = sum(_output_error(weight, factors, hessian, grid) for weight in weights)
        if error < least:
            best, least = factors, error
    return best


def _output_error(weight: Tensor, factors: Tensor, hessian: Tensor, grid: Grid) -> float:
    """The sum of squares of (rounded - weight) x over all inputs."""
    difference = round_to_nearest(weight * factors, grid).floats() / factors - weight
    return float(((difference @ hessian) * difference).sum())
