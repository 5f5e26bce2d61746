"""Random packed matrices, and native products with them."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor

from penstock.kernels.arrays import BFLOAT16, Array
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import BLOCK, NIBBLES, Kind, PackedMatrix, Segment, allocate, fill

QUANTIZED = np.dtype(
    [
        ("scale", "f4"),
        ("scaled_sum", "f4"),
        ("minus_sum", "i4"),
        ("minus_first", "i4"),
        ("codes", "i1", 32),
        ("high", "i1", 4),
        ("quad", "i2"),
        ("level", "i2"),
    ]
)


class SeparateArena(Arena):
    """Allocates each array separately, so that AddressSanitizer catches out-of-bounds reads."""

    def empty(self, *shape: int, dtype: DTypeLike) -> Array:
        return np.empty(shape, dtype=dtype)


def random_segment(kind: Kind, rows: int, cols: int) -> Segment:
    """All codes and a wide range of scales occur, 0 among them."""
    blocks = -(-cols // BLOCK)
    segment = allocate(kind, rows, cols, SeparateArena())
    if kind.is_float:
        fill(segment, 0, random_floats(rows, cols, segment.codes.dtype))
        return segment
    codes = torch.randint(0, 256, (rows, blocks, 16 if kind in NIBBLES else 32), dtype=torch.uint8)
    groups = (2,) if kind is Kind.U8_HALVES else ()
    scales = torch.randn(rows, blocks, *groups) * 10.0 ** torch.randint(-4, 1, (rows, blocks, *groups))
    scales[torch.rand(scales.shape) < 0.05] = 0.0
    fill(segment, 0, codes.numpy(), scales.numpy(), torch.randn(rows, blocks).numpy() * 0.1)
    return segment


def random_floats(rows: int, cols: int, dtype: np.dtype) -> Array:
    values = torch.randn(rows, cols)
    if dtype == BFLOAT16:
        return values.bfloat16().view(torch.uint16).numpy()
    return values.numpy().astype(dtype)


def random_matrix(kinds: tuple[Kind, ...], rows: tuple[int, ...], cols: int) -> PackedMatrix:
    return PackedMatrix([random_segment(kind, count, cols) for kind, count in zip(kinds, rows, strict=True)], cols)


def quantized(native: ctypes.CDLL, x: Tensor) -> np.ndarray:
    """[tokens, blocks] of QUANTIZED, as native code makes them."""
    made = np.zeros((len(x), -(-x.shape[1] // BLOCK)), QUANTIZED)
    native.penstock_quantize(x.data_ptr(), *x.shape, made.ctypes.data)
    return made


def round_up(size: Tensor) -> Tensor:
    """To four bits behind the first, but for the last three bits, as the sizes that set a block's scale are."""
    return ((size.view(torch.int32) + 0x7FFF8) & ~0x7FFFF).view(torch.float32)


def whole_codes(made: np.ndarray) -> Tensor:
    """[tokens, blocks, 32] int32: high codes included."""
    quads = made["codes"].astype(np.int32).reshape(*made.shape, 8, 4)
    at = made["quad"][..., None, None].astype(np.int64)
    wide = np.take_along_axis(quads, at, axis=2) + 16 * made["high"][..., None, :].astype(np.int32)
    np.put_along_axis(quads, at, wide, axis=2)
    return torch.from_numpy(quads.reshape(*made.shape, BLOCK))


def linear(
    native: ctypes.CDLL,
    x: Tensor,
    matrix: PackedMatrix,
    bias: Tensor | None = None,
    *,
    parts: int = 1,
    out: Tensor | None = None,
    accumulate: bool = False,
) -> Tensor:
    """All parts, one after the other. `out` may be wider than the matrix has rows."""
    if out is None:
        out = torch.full((len(x), matrix.shape[0]), torch.nan)
    made = quantized(native, x)
    for part in range(parts):
        native.penstock_linear(
            matrix.address,
            x.data_ptr(),
            made.ctypes.data,
            len(x),
            None if bias is None else bias.data_ptr(),
            out.data_ptr(),
            out.stride(0),
            accumulate,
            part,
            parts,
        )
    return out
