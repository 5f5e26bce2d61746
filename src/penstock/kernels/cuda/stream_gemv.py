"""Up to 32 rows of x times a matrix of codes, read from memory without a pause: `stream_gemv.cu`, in CUDA C++.

As `coded_gemv` and `coded_gemm`, which take what this kernel does not: groups that are no multiple of 64 columns,
offsets, codes of 5 and 6 bits, E2M1.
"""

from __future__ import annotations

import struct
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.kernels.coded import LONGEST_RUN, Code, CodedRows
from penstock.kernels.cuda.product_end import split_buffers
from penstock.kernels.cuda.runtime_kernel import RuntimeKernel, is_available
from penstock.kernels.interface import Activation, Norm

WARPS, LINES = 8, 16  # of a program; rows of the weight that it takes at a time
MOST_ROWS = 32
MOST_SHARED = 227 * 1024  # bytes of a program, on Hopper
STAGES = (4, 3)  # chunks in flight for each warp: with up to 8 rows, and more
MOST_SPLITS = 8

_CODES = {Code.U4: 1, Code.S8: 2, Code.E4M3: 3}
_SCALES = {torch.float16: 0, torch.bfloat16: 1, torch.float32: 2}
_NAMES = ("CODE", "HALF", "GROUP", "SCALE", "ZEROS", "GATED", "SILU", "NORM", "OUT32", "TILES", "STAGES")
_ARGUMENTS = struct.Struct("9Q9if")

_kernel = RuntimeKernel(Path(__file__).with_suffix(".cu"), "stream_gemv")


class Tiling(NamedTuple):
    splits: int  # programs that share the width
    stages: int


def suits(x: Tensor, part: CodedRows, bias: Tensor | None) -> bool:
    """Whether the kernel can multiply them."""
    code, group, scale, shift = part.coding
    return (
        len(x) <= MOST_ROWS
        and x.dtype in (torch.bfloat16, torch.float16)
        and code in _CODES
        and scale in _SCALES
        and part.coding.run == LONGEST_RUN
        and (shift is None or (shift == "zeros" and code == Code.U4 and group != 0))
        and (group == 0 or part.coding.chunk % group == 0 or group % part.coding.chunk == 0)
        and x.shape[1] % 8 == 0
        and (bias is None or bias.dtype == x.dtype)
        and is_available()
    )


def fuses_norm(norm: Norm, width: int) -> bool:
    """Whether the norm of x can be fused into the product."""
    return norm.weight.dtype == torch.float32 and width % 256 == 0


def stream_gemv(
    x: Tensor,
    part: CodedRows,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    norm: Norm | None = None,
    onto: bool = False,
    activation: Activation | None = None,
    tiling: Tiling | None = None,
) -> None:
    """As `coded_gemm`."""
    coding, (rows, width) = part.coding, x.shape
    size = part.rows // (1 if activation is None else 2)
    chunks = -(-width // coding.chunk)
    tiles = -(-size // (LINES if activation is None else LINES // 2))
    eights = 1 if rows <= 8 else 2 if rows <= 16 else 4
    splits, stages = tiling or _tiling(part, rows, eights, norm is not None)
    constants = (
        _CODES[coding.code],
        x.dtype == torch.float16,
        coding.group,
        _SCALES[part.scales.dtype],
        part.shifts is not None,
        activation is not None,
        activation == "silu",
        norm is not None,
        out.dtype == torch.float32,
        eights,
        stages,
    )
    kernel = _kernel.variant(_NAMES, tuple(map(int, constants)))
    programs = _multiprocessors(x.device) // splits
    parts, arrived = split_buffers(out, tiles, splits, LINES * 8 * eights)
    arguments = _ARGUMENTS.pack(
        x.data_ptr(),
        part.words.data_ptr(),
        part.scales.data_ptr(),
        0 if part.shifts is None else part.shifts.data_ptr(),
        0 if bias is None else bias.data_ptr(),
        0 if norm is None else norm.weight.data_ptr(),
        out.data_ptr(),
        parts.data_ptr(),
        arrived.data_ptr(),
        rows,
        width,
        size,
        part.rows,
        out.stride(0),
        chunks,
        part.scales.shape[1],
        splits,
        onto,
        0.0 if norm is None else norm.eps,
    )
    shared = _shared_bytes(part, rows, eights, Tiling(splits, stages), norm is not None)
    kernel((min(programs, tiles) * splits, 1, 1), 32 * WARPS, shared, arguments)


@cache
def _multiprocessors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _tiling(part: CodedRows, rows: int, eights: int, has_norm: bool = False) -> Tiling:
    stages = STAGES[eights > 1]
    splits = 1
    while splits < MOST_SPLITS and _shared_bytes(part, rows, eights, Tiling(splits, stages), has_norm) > MOST_SHARED:
        splits *= 2
    return Tiling(splits, stages)


def _shared_bytes(part: CodedRows, rows: int, eights: int, tiling: Tiling, has_norm: bool = False) -> int:
    """As the kernel divides them."""
    coding = part.coding
    chunks = -(-part.cols // coding.chunk)
    share = -(-chunks // tiling.splits)
    factors = 0
    if coding.group:
        factors = 16 * max(4, max(1, coding.chunk // coding.group) * part.scales.element_size())
    stage = 32 * 64 + factors + (0 if part.shifts is None else 16 * 4)
    sums = 2 * WARPS * eights * 128 * 4
    totals = share * coding.code.planes * 8 * eights * 4 if coding.code == Code.U4 else 0
    x = rows * (share * coding.chunk * 2 + 64)
    gains = 4 * (part.cols + rows * (part.cols // 256) + 4) if has_norm else 0
    return sums + totals + gains + x + 128 + WARPS * tiling.stages * stage
