"""`--quantize` on torch devices: float weights rounded to the nearest codes when they are loaded.

int4 has a scale for 64 inputs, which takes the number that is largest in magnitude to the code -8; int8 one for 128
inputs; fp8 (e4m3) one for a row, so that products with many rows can multiply in 8 bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from penstock.kernels.coded import Code, Coding, Inputs

Rounding = Literal["fp8", "int8", "int4"]

CHUNK = 1 << 26  # numbers rounded at a time, to bound temporary memory
GROUPS: dict[Rounding, tuple[int, ...]] = {"int8": (128, 64, 32, 16), "int4": (64, 32, 16), "fp8": (0,)}
E4M3_LARGEST = 448.0


def rounded_coding(to: Rounding, cols: int) -> Coding | None:
    """None: no group divides the columns."""
    group = next((group for group in GROUPS[to] if not group or cols % group == 0), None)
    if group is None:
        return None
    if to == "fp8":
        return Coding(Code.E4M3, group, torch.float32)
    return Coding(Code.S8 if to == "int8" else Code.U4, group, torch.float16)


def rounded_inputs(to: Rounding) -> Inputs | None:
    return Inputs(torch.float8_e4m3fn) if to == "fp8" else None


def round_rows(weight: Tensor, coding: Coding) -> Iterator[tuple[Tensor, Tensor]]:
    """`weight` [rows, cols] of a float type, some rows at a time: canonical codes and scales."""
    step = max(CHUNK // weight.shape[1], 1)
    for begin in range(0, len(weight), step):
        part = weight[begin : begin + step].float()
        groups = part.view(len(part), coding.groups(part.shape[1]), -1)
        codes, scales = _round(groups, coding)
        yield codes.view(part.shape), scales


def _round(groups: Tensor, coding: Coding) -> tuple[Tensor, Tensor]:
    """[rows, groups, columns] float32 -> codes of this shape, scales [rows, groups]"""
    low, high = groups.amin(dim=2), groups.amax(dim=2)
    extreme = torch.where(high > -low, high, low)
    reach = {Code.U4: -8.0, Code.S8: 127.0, Code.E4M3: E4M3_LARGEST}[coding.code]
    scales = (extreme / reach).to(coding.scale)
    scales = torch.where(scales == 0, 1.0, scales)
    numbers = groups / scales.float()[..., None]
    match coding.code:
        case Code.U4:
            return (numbers.round_().clamp_(-8, 7) + 8).to(torch.uint8), scales
        case Code.S8:
            return numbers.round_().clamp_(-127, 127).to(torch.int8), scales
        case _:
            return numbers.clamp_(-E4M3_LARGEST, E4M3_LARGEST).to(torch.float8_e4m3fn), scales
