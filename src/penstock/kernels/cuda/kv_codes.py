"""Quantized keys and values as the attention kernels read them: the codes of a head of a token are units of 16 bits,
and unit u of n holds the codes of dimensions u, u + n, u + 2n and so on, lowest bits first: two of 8 bits or four of
4 bits. So a tile of units unpacks to that many tiles of numbers, each of neighbouring dimensions, in registers and in
the layout that tensor cores take; numbers of 16 bits are tiles of their own.

fp8 is e4m3, int8 a signed number, each with a float32 scale for a head of a token. int4 has a float16 scale for each of
its four tiles: bit 3 of a code is the sign, the others number one of eight magnitudes, which are those of
the CPU kernels (native/int4.h). fp8 can have one scale for all tokens instead ("static").

Codes become float16, which holds them exactly, whatever 16-bit type the model computes in; float32 in models of
float32.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.interface import Pages

Allocate = Callable[[Sequence[int], torch.dtype], Tensor]

INT4_SCALE = tl.constexpr(1.0 / 128.0)  # what a stored scale of int4 counts
# Weights of values are multiplied by their scales before they are rounded to float16. So they are 2^10 times as large:
# clear of numbers that float16 cannot tell from 0.
GAIN_LOG2 = tl.constexpr(10.0)
LARGEST_HALF = tl.constexpr(65504.0)

KIND_DTYPES = {"fp8": torch.float8_e4m3fn, "int8": torch.int8, "int4": torch.uint8}
PLAIN = ("plain", "plain")
KINDS = {dtype: kind for kind, dtype in KIND_DTYPES.items()}

# Each takes two units, of neighbouring columns, in 32 bits; output i has part i of both as two float16.
_FP8_ASM = tl.constexpr("""{
.reg .b32 sorted;
.reg .b16 first, second;
prmt.b32 sorted, $2, 0, 0x3120;
mov.b32 {first, second}, sorted;
cvt.rn.f16x2.e4m3x2 $0, first;
cvt.rn.f16x2.e4m3x2 $1, second;
}""")
# 0x64 in the upper byte of a float16 makes it 1024 + the lower byte, here the code + 128.
_INT8_ASM = tl.constexpr("""{
.reg .b32 codes, both, bias;
mov.b32 bias, 0x64806480;
xor.b32 codes, $2, 0x80808080;
prmt.b32 both, codes, 0x64646464, 0x4240;
sub.f16x2 $0, both, bias;
prmt.b32 both, codes, 0x64646464, 0x4341;
sub.f16x2 $1, both, bias;
}""")
# Bits 0 to 2 of a code choose one of the eight magnitudes, as bytes of a table; then as int8. Bit 3 is the sign.
_INT4_ASM = tl.constexpr("""{
.reg .b32 places, upper, first, second, both, sign, bias;
mov.b32 bias, 0x64006400;
and.b32 places, $4, 0x77777777;
shr.b32 upper, places, 16;
prmt.b32 first, 0x2c1f1206, 0x7f604b3a, places;
prmt.b32 second, 0x2c1f1206, 0x7f604b3a, upper;
prmt.b32 both, first, second, 0x4400;
lop3.b32 both, both, 0x00ff00ff, 0x64006400, 0xea;
sub.f16x2 both, both, bias;
shl.b32 sign, $4, 12;
lop3.b32 $0, both, sign, 0x80008000, 0x78;
prmt.b32 both, first, second, 0x5511;
lop3.b32 both, both, 0x00ff00ff, 0x64006400, 0xea;
sub.f16x2 both, both, bias;
shl.b32 sign, $4, 8;
lop3.b32 $1, both, sign, 0x80008000, 0x78;
prmt.b32 both, first, second, 0x6622;
lop3.b32 both, both, 0x00ff00ff, 0x64006400, 0xea;
sub.f16x2 both, both, bias;
shl.b32 sign, $4, 4;
lop3.b32 $2, both, sign, 0x80008000, 0x78;
prmt.b32 both, first, second, 0x7733;
lop3.b32 both, both, 0x00ff00ff, 0x64006400, 0xea;
sub.f16x2 both, both, bias;
lop3.b32 $3, both, $4, 0x80008000, 0x78;
}""")


def kind(pages: Tensor, scales: Tensor | None) -> str:
    """Of keys or of values, as the kernels are told."""
    if scales is not None and scales.dim() == 1:
        return "static"
    return KINDS.get(pages.dtype, "plain")


def kinds(pages: Pages) -> tuple[str, str]:
    """Of keys and of values."""
    return kind(pages.keys, pages.key_scales), kind(pages.values, pages.value_scales)


def in_memory(pages: Pages) -> tuple[Tensor | None, ...]:
    """The arguments of a kernel that are pages."""
    return pages.keys, pages.values, pages.key_scales, pages.value_scales


def head_dim(pages: Pages) -> int:
    """Two of int4 are in a byte."""
    return pages.keys.shape[-1] * (2 if pages.keys.dtype == torch.uint8 else 1)


def empty(
    kind: str, shape: tuple[int, int, int, int], dtype: torch.dtype, allocate: Allocate
) -> tuple[Tensor, Tensor | None]:
    """Pages of keys or of values [blocks, block_size, kv_heads, head_dim], with their scales. Not initialised. `dtype`
    is that of plain ones, which are those of all other kinds. Static scales are the caller's."""
    blocks, block_size, heads, dim = shape
    if kind == "int4":
        scales = allocate((blocks, heads, 4, block_size), torch.float16)
        return allocate((blocks, block_size, heads, dim // 2), torch.uint8), scales
    if kind == "static":
        return allocate(shape, KIND_DTYPES["fp8"]), None
    if kind not in KIND_DTYPES:
        return allocate(shape, dtype), None
    return allocate(shape, KIND_DTYPES[kind]), allocate((blocks, heads, block_size), torch.float32)


@triton.constexpr_function
def num_parts(kind: str) -> int:
    """The tiles that a tile of units unpacks to."""
    return {"plain": 1, "int4": 4}.get(kind, 2)


@triton.constexpr_function
def num_scales(kind: str) -> int:
    """Of a head of a token."""
    return {"plain": 0, "static": 0, "int4": 4}.get(kind, 1)


@triton.constexpr_function
def tile_width(kind: str, dim: int) -> int:
    """Columns of each of those tiles: tensor cores take 16 at least."""
    width: int = triton.next_power_of_2(dim // num_parts(kind))
    return width if kind == "plain" else max(16, width)


@triton.jit
def unpack(units, KIND: tl.constexpr, WIDE: tl.constexpr):
    """A tile of each part of the units: float32 if WIDE, else float16. Scales are still to be applied."""
    if KIND == "plain":
        parts = (units,)
    elif WIDE:
        parts = _unpack_wide(units.to(tl.int32), KIND)
    elif KIND == "int4":
        halves: tl.constexpr = (tl.float16, tl.float16, tl.float16, tl.float16)
        parts = tl.inline_asm_elementwise(_INT4_ASM, "=r,=r,=r,=r,r", [units], halves, is_pure=True, pack=2)
    else:
        asm: tl.constexpr = _INT8_ASM if KIND == "int8" else _FP8_ASM
        parts = tl.inline_asm_elementwise(asm, "=r,=r,r", [units], (tl.float16, tl.float16), is_pure=True, pack=2)
    return parts


@triton.jit
def _unpack_wide(units, KIND: tl.constexpr):
    if KIND == "int8":
        parts = ((units << 24) >> 24).to(tl.float32), ((units << 16) >> 24).to(tl.float32)
    elif KIND == "int4":
        low, high = units, units >> 8
        parts = (_int4_number(low), _int4_number(low >> 4), _int4_number(high), _int4_number(high >> 4))  # type: ignore[assignment]
    else:
        parts = _e4m3_number(units), _e4m3_number(units >> 8)
    return parts


@triton.jit
def _e4m3_number(code):
    """Exponent and mantissa in their places in a float32, whose exponents count from 120 lower."""
    bits = ((code & 0x80) << 24) | ((code & 0x7F) << 20)
    return bits.to(tl.float32, bitcast=True) * 1.329227995784916e36


@triton.jit
def _int4_number(code):
    place = code & 7
    level = tl.where(place < 2, tl.where(place == 0, 6.0, 18.0), tl.where(place == 2, 31.0, 44.0))
    above = tl.where(place < 6, tl.where(place == 4, 58.0, 75.0), tl.where(place == 6, 96.0, 127.0))
    level = tl.where(place < 4, level, above)
    return tl.where((code & 8) == 0, level, -level)
