"""Products with coded weights (`kernels.coded`): which kernel for how many rows.

few rows     `coded_gemv` or `coded_gemm`: codes become floats in registers
many rows    `octet_gemm` or `scaled_gemm`, if the inputs are to have 8 bits, too (`Inputs`); else cuBLAS, for which
             some rows of the weight at a time become 16-bit floats in memory (`expand_codes`)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from penstock.kernels.coded import Code, CodedMatrix, CodedRows, Inputs
from penstock.kernels.cuda.coded_gemm import LONG_CHUNK, coded_gemm
from penstock.kernels.cuda.coded_gemv import coded_gemv
from penstock.kernels.cuda.expand_codes import expand
from penstock.kernels.cuda.gate import gate
from penstock.kernels.cuda.norm import norm as norm_
from penstock.kernels.cuda.octet_gemm import octet_gemm
from penstock.kernels.cuda.quantize_inputs import quantize_inputs
from penstock.kernels.cuda.scaled_gemm import scaled_gemm
from penstock.kernels.cuda.triton_internals import is_interpreted
from penstock.kernels.interface import Activation, Norm

# Rows of x up to which a kernel is the fastest of those that can take its place, on an H200.
GEMV_ROWS, GEMM_ROWS = 8, 64
GEMM_ROWS_LARGE, LARGE_GROUP = 128, 64  # of large groups, whose sums are scaled less often
GEMM_ROWS_LONG = 16  # of codes with long chunks, since there are not enough registers for more
EIGHT_BIT_ROWS = 32  # for fewer, rounding the inputs takes longer than it saves
OCTET_ROWS, OCTET_ROWS_LARGE = 64, 128  # the latter of weights with many rows
LARGE_OUTS = 128 * 132
ALIGNED = 8  # rows of a part: kernels expect their pointers to be multiples of 16 bytes
SLICE = 128  # rows of a weight at a time are a multiple of it: cuBLAS is slow where columns are not aligned
EXPANDED = 1 << 25  # elements of a weight that are 16-bit floats at a time


def coded_linear(
    x: Tensor,
    matrix: CodedMatrix,
    bias: Tensor | None = None,
    *,
    norm: Norm | None = None,
    onto: Tensor | None = None,
    activation: Activation | None = None,
) -> Tensor:
    """See `interface.Linear`. Parts of different codings are multiplied one by one."""
    product, rows = _product(x, matrix, norm), len(x)
    if len(matrix.parts) == 1:
        size = matrix.shape[0] // (1 if activation is None else 2)
        out = torch.empty(rows, size, dtype=x.dtype, device=x.device) if onto is None else onto
        product(matrix.parts[0], out, bias, onto=onto is not None, activation=activation)
        return out
    out = torch.empty(rows, matrix.shape[0], dtype=x.dtype, device=x.device)
    _multiply_parts(product, matrix, out, bias)
    if activation is not None:
        out = gate(out, activation)
    return out if onto is None else onto.add_(out)


def coded_logits(x: Tensor, matrix: CodedMatrix, out: Tensor) -> None:
    """x [rows, in] × matrix [out, in] to `out`, float32."""
    x, most = _ordered(x, matrix), _most_rows(matrix)
    for first in range(0, len(x), most):
        some = x[first : first + most]
        _multiply_parts(partial(_kernel(some, most), some), matrix, out[first : first + most])


def _multiply_parts(product: Callable[..., None], matrix: CodedMatrix, out: Tensor, bias: Tensor | None = None) -> None:
    begin = 0
    for part in matrix.parts:
        end = begin + part.rows
        columns = out[:, begin:end]
        if begin % ALIGNED == 0:
            product(part, columns, None if bias is None else bias[begin:end])
        else:
            copied = torch.empty_like(columns, memory_format=torch.contiguous_format)
            product(part, copied, None if bias is None else bias[begin:end].clone())
            columns.copy_(copied)
        begin = end


def _product(x: Tensor, matrix: CodedMatrix, norm: Norm | None) -> Callable[..., None]:
    """A function of what follows x in the arguments of `coded_gemm`."""
    rows, inputs = len(x), matrix.inputs
    if inputs is not None and rows > EIGHT_BIT_ROWS and _has_octets(matrix, inputs):
        is_plain = inputs.group == 0
        octets = quantize_inputs(x, inputs.dtype, norm, fixed=inputs.scale, grouped=not is_plain)
        limit = OCTET_ROWS_LARGE if matrix.shape[0] >= LARGE_OUTS else OCTET_ROWS
        by_library = inputs.dtype == torch.float8_e4m3fn and is_plain and rows > limit
        return partial(scaled_gemm if by_library else octet_gemm, octets)
    x = _ordered(x if norm is None else norm_(x, norm), matrix)
    return partial(_kernel(x, _most_rows(matrix)), x)


def _most_rows(matrix: CodedMatrix) -> int:
    """Of x, up to which codes become floats in registers."""
    codings = [part.coding for part in matrix.parts]
    if any(coding.chunk > LONG_CHUNK for coding in codings):
        return GEMM_ROWS_LONG
    return GEMM_ROWS_LARGE if all(not 0 < coding.group < LARGE_GROUP for coding in codings) else GEMM_ROWS


def _kernel(x: Tensor, most: int) -> Callable[..., None]:
    """`most`: see `_most_rows`. In float32 there is no room for x."""
    if len(x) > most or not (x.element_size() == 2 or is_interpreted()):
        return _expanded_gemm
    return coded_gemv if len(x) <= GEMV_ROWS else coded_gemm


def _has_octets(matrix: CodedMatrix, inputs: Inputs) -> bool:
    """Whether the matrix can be multiplied as it is stored, in 8 bits on both sides."""

    def suits(part: CodedRows) -> bool:
        code, group, scale, shift = part.coding
        dtype = {Code.E4M3: torch.float8_e4m3fn, Code.S8: torch.int8}.get(code)
        is_grouped = group == 0 or (group == 128 and part.cols % 128 == 0)
        return (dtype, group, scale, shift) == (inputs.dtype, inputs.group, torch.float32, None) and is_grouped

    return matrix.order is None and all(suits(part) and part.rows % 16 == 0 for part in matrix.parts)


def _ordered(x: Tensor, matrix: CodedMatrix) -> Tensor:
    return x if matrix.order is None else x.index_select(1, matrix.order)


def _expanded_gemm(
    x: Tensor,
    part: CodedRows,
    out: Tensor,
    bias: Tensor | None = None,
    *,
    onto: bool = False,
    activation: Activation | None = None,
) -> None:
    """As `coded_gemm`."""
    y = out if activation is None else torch.empty(len(x), part.rows, dtype=x.dtype, device=x.device)
    is_sum = onto and activation is None
    lines = max(EXPANDED // part.cols // SLICE, 1) * SLICE
    scratch = torch.empty(min(lines, part.rows), part.cols, dtype=x.dtype, device=x.device)
    for begin in range(0, part.rows, lines):
        end = min(begin + lines, part.rows)
        weight, columns = expand(part, begin, end, scratch).t(), y[:, begin:end]
        if is_sum:
            columns.addmm_(x, weight)
        else:
            torch.mm(x, weight, out=columns)
    if bias is not None:
        y += bias
    if activation is not None:
        out.add_(gate(y, activation)) if onto else gate(y, activation, out)
