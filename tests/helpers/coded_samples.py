"""Random matrices of codes, with what they stand for computed independently of `kernels.coded`."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from penstock.kernels.coded import Code, Coding

FIXED_ZEROS = {Code.U4: 8, Code.U5: 16, Code.U6: 32, Code.S8: 0, Code.E4M3: 0, Code.E2M1: 0}


class CodedSample(NamedTuple):
    codes: Tensor  # canonical
    scales: Tensor
    shifts: Tensor | None
    weights: Tensor  # float64


def all_e2m1() -> Tensor:
    codes = torch.arange(16)
    exponent, mantissa = codes >> 1 & 3, codes & 1
    size = torch.where(exponent == 0, mantissa * 0.5, (1 + mantissa * 0.5) * 2.0 ** (exponent - 1))
    return torch.where(codes >= 8, -size, size).double()


def random_coded(coding: Coding, rows: int, cols: int, seed: int = 0) -> CodedSample:
    """All codes occur that are numbers, and scales of different sizes. Weights are of the size of 1."""
    generator = torch.Generator().manual_seed(seed)
    octets = torch.randint(256, (rows, cols), generator=generator, dtype=torch.uint8)
    match coding.code:
        case Code.S8:
            codes = octets.view(torch.int8)
        case Code.E4M3:
            codes = torch.where(octets & 127 == 127, 0, octets).view(torch.float8_e4m3fn)
        case other:
            codes = octets & (1 << other.bits) - 1
    plain = all_e2m1()[codes.long()] if coding.code is Code.E2M1 else codes.double()
    groups = coding.groups(cols)
    size = plain.std() if coding.code is Code.E4M3 else 2.0 ** (coding.code.bits - 2)
    scales = ((0.25 + torch.rand(rows, groups, generator=generator)) / size).to(coding.scale)
    wide = scales.double().repeat_interleave(coding.group or cols, dim=1)[:, :cols]
    if coding.shift is None:
        return CodedSample(codes, scales, None, wide * (plain - FIXED_ZEROS[coding.code]))
    if coding.shift == "zeros":
        shifts = torch.randint(1 << coding.code.bits, (rows, groups), generator=generator, dtype=torch.uint8)
    else:
        shifts = (torch.randn(rows, groups, generator=generator) - 1.5).to(coding.scale)
    wide_shifts = shifts.double().repeat_interleave(coding.group or cols, dim=1)[:, :cols]
    return CodedSample(
        codes, scales, shifts, wide * (plain - wide_shifts) if coding.shift == "zeros" else wide * plain + wide_shifts
    )
