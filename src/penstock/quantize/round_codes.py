"""Codes of a matrix: rounded to nearest, with a scale and a zero point for each group of inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Grid:
    """The numbers that codes of a matrix can stand for."""

    bits: int
    group: int  # inputs that share a scale
    symmetric: bool = True

    @property
    def most(self) -> int:
        return (1 << self.bits) - 1

    def fit(self, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Scales (rounded to float16, as they are stored) and zero points of rows [rows, group], each [rows, 1]."""
        if self.symmetric:
            scales = weight.abs().amax(dim=1, keepdim=True) / (self.most // 2)
            zeros = torch.full_like(scales, (self.most + 1) // 2)
        else:
            low = weight.amin(dim=1, keepdim=True).clamp(max=0)
            high = weight.amax(dim=1, keepdim=True).clamp(min=0)
            scales = (high - low) / self.most
            zeros = torch.round(-low / _positive(scales))
        scales = _positive(scales).half().float()
        # At least 1: GPTQ's format stores zero points less one.
        return _positive(scales), zeros.clamp(1, self.most)

    def round(self, weight: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
        """Codes, as floats"""
        return (torch.round(weight / scales) + zeros).clamp(0, self.most)


@dataclass(frozen=True, slots=True)
class Codes:
    codes: Tensor  # [rows, cols] uint8
    scales: Tensor  # [rows, groups] float32, each a float16
    zeros: Tensor  # [rows, groups] uint8

    def floats(self) -> Tensor:
        """[rows, cols] float32: what the codes stand for"""
        rows, cols = self.codes.shape
        parts = self.codes.float().reshape(rows, self.scales.shape[1], -1) - self.zeros.float()[..., None]
        return (parts * self.scales[..., None]).reshape(rows, cols)


def round_to_nearest(weight: Tensor, grid: Grid) -> Codes:
    rows, cols = weight.shape
    parts = weight.reshape(-1, grid.group)
    scales, zeros = grid.fit(parts)
    codes = grid.round(parts, scales, zeros)
    groups = cols // grid.group
    return Codes(codes.to(torch.uint8).reshape(rows, cols), scales.reshape(rows, groups), _octets(zeros, rows, groups))


def _octets(zeros: Tensor, rows: int, groups: int) -> Tensor:
    return zeros.to(torch.uint8).reshape(rows, groups)


def _positive(scales: Tensor) -> Tensor:
    """Rows of zeros have a scale too."""
    return torch.where(scales > 0, scales, torch.full_like(scales, 2.0**-14))
