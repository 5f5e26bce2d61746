"""The numbers that codes stand for, as a kernel's tile of the weight: of one plane (`kernels.coded`), from its words.

A 16-bit float is made from a code without a conversion: the code becomes the last bits of a number whose exponent lets
the last bit count 1 (128 + code in bfloat16, 1024 + code in float16), and the difference to the code 0 is taken. Floats
of 4 and 8 bits become 16-bit floats of lower exponents, by shifting, and are multiplied to size. Both take few
instructions for two codes at a time, in assembly, since the compiler would take each by itself. All results are exact.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda import triton_internals


@triton.constexpr_function
def _assembly(code: str, plane: int, zero: int, is_half: bool, is_raw: bool) -> str:
    """From $1, two words, and $2, those with the high bits, to $0."""
    kind, base = ("f16x2", 0x6400) if is_half else ("bf16x2", 0x4300)
    magic, less = f"0x{base * 0x10001:08x}", f"0x{(base + zero) * 0x10001:08x}"
    right = f"shr.b32 t, $1, {8 * plane if code in ('s8', 'e4m3') else 4 * (plane % 4)};"
    either_and = "0xea"  # lop3: (a & b) | c
    minus = "mov.b32 $0, t;" if is_raw else f"mov.b32 u, {less}; sub.{kind} $0, t, u;"
    match code:
        case "u4":
            steps = f"{right} lop3.b32 t, t, 0x000f000f, {magic}, {either_and}; {minus}"
        case "u5" | "u6":
            mask, by = ("0x00300030", 2 * plane - 4) if code == "u6" else ("0x00100010", plane - 4)
            high = f"shr.b32 u, $2, {by};" if by >= 0 else f"shl.b32 u, $2, {-by};"
            steps = (
                f"{right} lop3.b32 t, t, 0x000f000f, {magic}, {either_and};"
                f"{high} lop3.b32 t, u, {mask}, t, {either_and}; {minus}"
            )
        case "s8" if is_half:
            steps = f"{right} lop3.b32 t, t, 0x00ff00ff, 0x64806480, 0x6a; mov.b32 u, 0x64806480; sub.f16x2 $0, t, u;"
        case "s8":  # the sign is worth 128: 128 or 256 is what to subtract
            steps = (
                f"{right} lop3.b32 u, t, 0x00800080, {magic}, {either_and};"
                f"lop3.b32 t, t, 0x007f007f, {magic}, {either_and}; sub.bf16x2 $0, t, u;"
            )
        case "e4m3":
            mask, by, factor = ("0x3f803f80", 1, 0x5C00) if is_half else ("0x07f007f0", 4, 0x7B80)
            to_place = f"shr.b32 t, $1, {by};" if plane else f"shl.b32 t, $1, {8 - by};"
            sign = "and.b32 u, $1, 0x80008000;" if plane else "shl.b32 u, $1, 8; and.b32 u, u, 0x80008000;"
            steps = f"{to_place} {sign} lop3.b32 t, t, {mask}, u, {either_and};" + (
                "mov.b32 $0, t;" if is_raw else f"mov.b32 u, 0x{factor * 0x10001:08x}; mul.{kind} $0, t, u;"
            )
        case "e2m1":
            mask, place, factor = ("0x0e000e00", 9, 0x7400) if is_half else ("0x01c001c0", 6, 0x7E80)
            by = place - 4 * plane
            to_place = f"shl.b32 t, $1, {by};" if by >= 0 else f"shr.b32 t, $1, {-by};"
            sign = f"shl.b32 u, $1, {12 - 4 * plane}; and.b32 u, u, 0x80008000;"
            steps = f"{to_place} {sign} lop3.b32 t, t, {mask}, u, {either_and};" + (
                "mov.b32 $0, t;" if is_raw else f"mov.b32 u, 0x{factor * 0x10001:08x}; mul.{kind} $0, t, u;"
            )
        case _:
            raise ValueError(code)
    return "{ .reg .b32 t, u; " + steps + " }"


@triton.constexpr_function
def raw_base(code: str, is_half: bool, assembled: bool) -> int:
    return (1024 if is_half else 128) if assembled and code in ("u4", "u5", "u6") else 0


@triton.constexpr_function
def raw_exponent(code: str, is_half: bool, assembled: bool) -> int:
    """Floats are this power of 2 times what RAW gives."""
    by_code = {"e4m3": (120, 8), "e2m1": (126, 14)}
    return by_code[code][is_half] if assembled and code in by_code else 0


def has_assembly(x: Tensor) -> bool:
    """Whether products with x have the numbers by assembly."""
    return x.element_size() == 2 and not triton_internals.is_interpreted()


@triton.jit
def plane_values(
    low,
    high,
    x,
    CODE: tl.constexpr,
    PLANE: tl.constexpr,
    ZERO: tl.constexpr,
    ASM: tl.constexpr,
    RAW: tl.constexpr = False,
):
    """`low` int16: the words with the plane's low bits, `high`: those with its high bits, if the code has such. Gives
    code - ZERO. ASM: for 16-bit floats, on a device. RAW: without the last instruction: `raw_base` + code, or the
    float / 2 ** `raw_exponent`."""
    if ASM:
        text: tl.constexpr = _assembly(CODE, PLANE, ZERO, x.dtype.element_ty == tl.float16, RAW)
        if CODE == "u5" or CODE == "u6":
            values = tl.inline_asm_elementwise(
                text, "=r,r,r", [low, high], dtype=x.dtype.element_ty, is_pure=True, pack=2
            )
        else:
            values = tl.inline_asm_elementwise(text, "=r,r", [low], dtype=x.dtype.element_ty, is_pure=True, pack=2)
    else:
        values = _plain_values(low, high, CODE, PLANE, ZERO).to(x.dtype.element_ty)
    return values


@triton.jit
def _plain_values(low, high, CODE: tl.constexpr, PLANE: tl.constexpr, ZERO: tl.constexpr):
    """float32"""
    word = low.to(tl.int32)
    if CODE == "s8" or CODE == "e4m3":
        octet = (word >> 8 * PLANE) & 255
        if CODE == "s8":
            values = ((octet ^ 128) - 128).to(tl.float32)
        else:
            bits = ((octet & 128) << 24) | ((octet & 127) << 20)
            values = bits.to(tl.float32, bitcast=True) * 1.329227995784916e36  # 2 ** 120
    else:
        code = (word >> 4 * (PLANE % 4)) & 15
        if CODE == "e2m1":
            bits = ((code & 8) << 28) | ((code & 7) << 22)
            values = bits.to(tl.float32, bitcast=True) * 8.507059173023462e37  # 2 ** 126
        else:
            if CODE == "u5":
                code |= ((high.to(tl.int32) >> PLANE) & 1) << 4
            if CODE == "u6":
                code |= ((high.to(tl.int32) >> 2 * PLANE) & 3) << 4
            values = (code - ZERO).to(tl.float32)
    return values
