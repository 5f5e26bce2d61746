"""Quantized weights on a torch device: matrices of codes, with a scale for each group of columns of a row.

    weight = scale * (code - zero)   the zero is fixed by the code (`Code.zero`), or stored for each group
    weight = scale * code + offset   with an offset for each group

Canonical codes are a number for each weight, [rows, cols]; scales, zeros and offsets are [rows, groups]. `fill` writes
them in the layout that the kernels read, `codes_of` gives them back.

Layout: the columns of a row are cut into chunks, and a chunk into planes of `run` columns each, which share a scale. Of
each plane a word of 16 bits holds one code, at the same place in every word; so a kernel extracts the codes of a whole
plane from words that follow each other by one mask, two at a time, and multiplies them with `run` columns of x that
follow each other. The last chunk is filled up with zeros. Codes of more than four bits have their high bits in words
behind those of the chunk's low ones:

    4 bits   4 planes   [run] words: plane p at bits 4p to 4p + 3
    5 bits   16 planes  [4, run] words as for 4 bits, [run] words with the fifth bit of plane p at bit p
    6 bits   8 planes   [2, run] words as for 4 bits, [run] words with the high bits of plane p at 2p and 2p + 1
    8 bits   2 planes   [run] words: plane p at bits 8p to 8p + 7

Scales and shifts lie by row, so that a kernel reads those of a chunk at once; the last chunk is filled up here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import gcd
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Allocate = Callable[[Sequence[int], torch.dtype], Tensor]  # of a shape and a type, not initialised

SHORTEST_RUN, LONGEST_RUN = 16, 64  # columns: what a tensor core multiplies at once; a line of 128 bytes


class Code(StrEnum):
    """How a weight is coded. Canonical codes are uint8, but int8 of S8 and float8_e4m3fn of E4M3."""

    U4 = "u4"
    U5 = "u5"
    U6 = "u6"
    S8 = "s8"
    E4M3 = "e4m3"
    E2M1 = "e2m1"  # bit 3: sign, 2 and 1: exponent, 0: mantissa

    @property
    def bits(self) -> int:
        return {Code.U4: 4, Code.U5: 5, Code.U6: 6, Code.E2M1: 4}.get(self, 8)

    @property
    def planes(self) -> int:
        return {4: 4, 5: 16, 6: 8, 8: 2}[self.bits]

    @property
    def words(self) -> int:
        """Words of a chunk for each column of a run."""
        return {4: 1, 5: 5, 6: 3, 8: 1}[self.bits]

    @property
    def zero(self) -> int:
        """The code of weight 0, where none is stored and there are no offsets."""
        return {Code.U4: 8, Code.U5: 16, Code.U6: 32}.get(self, 0)


class Coding(NamedTuple):
    """How the weights of some rows are coded."""

    code: Code
    group: int  # columns that share a scale: a multiple of 16, or 0 for a whole row
    scale: torch.dtype  # of scales and offsets: a float type
    shift: Literal["zeros", "offsets"] | None = None  # stored for each group; zeros are whole numbers, uint8

    @property
    def run(self) -> int:
        return gcd(self.group, LONGEST_RUN) if self.group else LONGEST_RUN

    @property
    def chunk(self) -> int:
        return self.run * self.code.planes

    def groups(self, cols: int) -> int:
        return -(-cols // self.group) if self.group else 1

    def stored_groups(self, cols: int) -> int:
        """Whole chunks."""
        if self.group and self.chunk % self.group == 0:
            return -(-cols // self.chunk) * (self.chunk // self.group)
        return self.groups(cols)

    def words(self, cols: int) -> int:
        """Of a row."""
        return -(-cols // self.chunk) * self.run * self.code.words

    def num_bytes(self, rows: int, cols: int) -> int:
        shift = {None: 0, "zeros": 1, "offsets": self.scale.itemsize}[self.shift]
        return rows * (2 * self.words(cols) + self.stored_groups(cols) * (self.scale.itemsize + shift))


class Inputs(NamedTuple):
    """In which type a checkpoint wants the inputs of a product multiplied. Products with few rows keep x as it is, and
    so are at least as exact."""

    dtype: torch.dtype  # float8_e4m3fn or int8, with a scale for each token
    scale: float | None = None  # of all tokens, if the checkpoint has one
    group: int = 0  # columns of x that share a scale; 0: all


@dataclass(frozen=True, slots=True, eq=False)
class CodedRows:
    """Rows of one coding."""

    coding: Coding
    rows: int
    cols: int
    words: Tensor  # [rows, words of a row] int16
    scales: Tensor  # [rows, stored groups]
    shifts: Tensor | None  # [rows, stored groups]: zeros or offsets

    @property
    def num_bytes(self) -> int:
        return self.coding.num_bytes(self.rows, self.cols)


class CodedMatrix:
    """[rows, cols]. Parts follow each other, since matrices that are multiplied together may have different codings."""

    def __init__(
        self, parts: Sequence[CodedRows], *, order: Tensor | None = None, inputs: Inputs | None = None
    ) -> None:
        """`order` [cols] int64: x[:, order] is multiplied with the columns as they are stored (GPTQ's desc_act).
        `inputs`: None keeps the type of x."""
        self.parts = tuple(parts)
        self.order, self.inputs = order, inputs
        self.shape = (sum(part.rows for part in parts), parts[0].cols)
        self.num_bytes = sum(part.num_bytes for part in parts) + (0 if order is None else order.nbytes)


def empty(
    coding: Coding, rows: int, cols: int, device: torch.device | None = None, allocate: Allocate | None = None
) -> CodedRows:
    """Rows for `fill`. Memory is torch's unless `allocate` gives it."""
    if coding.group % SHORTEST_RUN:
        raise ValueError(f"groups of {coding.group} columns: they must be multiples of {SHORTEST_RUN}")

    def make(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device) if allocate is None else allocate(shape, dtype)

    by_group = (rows, coding.stored_groups(cols))
    shifts = make(by_group, torch.uint8 if coding.shift == "zeros" else coding.scale) if coding.shift else None
    words = make((rows, coding.words(cols)), torch.int16)
    return CodedRows(coding, rows, cols, words, make(by_group, coding.scale), shifts)


def fill(target: CodedRows, begin: int, codes: Tensor, scales: Tensor, shifts: Tensor | None = None) -> None:
    """Rows from `begin` on, as many as there are canonical codes, on any device. Scales and shifts may be broadcast
    ([rows, 1] or [1, 1])."""
    end = begin + len(codes)
    target.words[begin:end] = _to_words(target.coding, codes)
    _fill_factors(target, target.scales[begin:end], scales)
    if target.shifts is not None:
        assert shifts is not None
        _fill_factors(target, target.shifts[begin:end], shifts)


def _fill_factors(target: CodedRows, stored: Tensor, factors: Tensor) -> None:
    groups = target.coding.groups(target.cols)
    stored[:, :groups] = factors
    stored[:, groups:] = 0


def encode(coding: Coding, codes: Tensor, scales: Tensor, shifts: Tensor | None = None) -> CodedMatrix:
    """A matrix of one part, on the device of the codes."""
    part = empty(coding, codes.shape[0], codes.shape[1], codes.device)
    fill(part, 0, codes, scales, shifts)
    return CodedMatrix([part])


def take_rows(matrix: CodedMatrix, rows: Tensor) -> CodedMatrix:
    """Some rows of a matrix of one part, which keep their codes. `rows` [n] int64, on its device."""
    (part,) = matrix.parts
    words, scales = (stored.index_select(0, rows) for stored in (part.words, part.scales))
    shifts = None if part.shifts is None else part.shifts.index_select(0, rows)
    taken = CodedRows(part.coding, len(rows), part.cols, words, scales, shifts)
    return CodedMatrix([taken], order=matrix.order, inputs=matrix.inputs)


def codes_of(part: CodedRows) -> Tensor:
    """[rows, cols] canonical codes."""
    code = part.coding.code
    stored = part.words.view(torch.uint8).view(part.rows, -1, code.words, part.coding.run, 2)
    if code.bits == 8:
        planes = stored[:, :, 0].movedim(-1, 2)
    else:
        low, high = stored[:, :, : code.planes // 4], stored[:, :, -1]
        nibbles = torch.stack((low & 15, low >> 4), dim=-1)  # [rows, chunks, low words, run, 2 bytes, 2]
        planes = nibbles.movedim(3, -1).flatten(2, 4)
        if code.bits > 4:
            extra = code.bits - 4
            shifts = torch.arange(0, 8, extra, device=high.device, dtype=torch.uint8)
            bits = (high[..., None] >> shifts) & ((1 << extra) - 1)  # [rows, chunks, run, 2, planes / 2]
            planes = planes | (bits.movedim(2, -1).flatten(2, 3) << 4)
    canonical = planes.reshape(part.rows, -1)[:, : part.cols].contiguous()
    return canonical.view({Code.S8: torch.int8, Code.E4M3: torch.float8_e4m3fn}.get(code, torch.uint8))


def _to_words(coding: Coding, codes: Tensor) -> Tensor:
    """[rows, words of a row] int16"""
    code, (rows, cols) = coding.code, codes.shape
    octets = codes.view(torch.uint8)
    if cols % coding.chunk:
        octets = torch.nn.functional.pad(octets, (0, -cols % coding.chunk))
    planes = octets.reshape(rows, -1, code.planes, coding.run)
    if code.bits == 8:
        stored = planes.movedim(2, -1)[:, :, None]
    else:
        nibbles = (planes & 15).view(rows, -1, code.planes // 4, 2, 2, coding.run)
        stored = (nibbles[:, :, :, :, 0] | nibbles[:, :, :, :, 1] << 4).movedim(3, -1)  # [rows, chunks, words, run, 2]
        if code.bits > 4:
            extra = code.bits - 4
            high = (planes >> 4).view(rows, -1, 2, code.planes // 2, coding.run)
            taken = high[:, :, :, 0]
            for place in range(1, code.planes // 2):
                taken = taken | high[:, :, :, place] << extra * place
            stored = torch.cat((stored, taken.movedim(2, -1)[:, :, None]), dim=2)
    return stored.contiguous().view(torch.int16).view(rows, coding.words(cols))
