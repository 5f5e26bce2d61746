"""Codes of a checkpoint as tensors, one code in each element: what `kernels.coded` is made of.

Words travel to the device as they are stored and are taken apart there. `dequantize` and `pack` describe the blocks of
GGUF; here each field is taken out of all blocks at once, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from penstock.errors import ModelInvalid
from penstock.kernels.arrays import Array
from penstock.model.weights.codes import Layout, StoredRows
from penstock.model.weights.dense_form import to_tensor
from penstock.model.weights.source import BLOCK_ELEMENTS, Span

AWQ_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)  # of eight outputs among the nibbles of a word


class Codes(NamedTuple):
    """Rows of a quantized matrix, on a device."""

    layout: Layout
    codes: Tensor  # [rows, cols] uint8; of s8 as two's complement
    scales: Tensor  # [rows, groups]
    shifts: Tensor | None = None  # [rows, groups]: zeros, uint8, or offsets
    order: Tensor | None = (
        None  # [cols] int64: the inputs that the columns are multiplied with, where groups are no runs
    )

    def map_rows(self, change: Callable[[Tensor], Tensor]) -> Codes:
        """With rows in another order."""
        shifts = None if self.shifts is None else change(self.shifts)
        return self._replace(codes=change(self.codes), scales=change(self.scales), shifts=shifts)

    def cut_columns(self, columns: Span) -> Codes:
        """Where `Layout.cut` gives a layout."""
        layout = self.layout.cut(self.codes.shape[1], columns)
        assert layout is not None
        scales, shifts = self.scales, self.shifts
        if layout.group:
            repeat = self.layout.group // layout.group
            groups = slice(columns.begin // layout.group, columns.end // layout.group)
            scales = scales.repeat_interleave(repeat, dim=1)[:, groups]
            shifts = None if shifts is None else shifts.repeat_interleave(repeat, dim=1)[:, groups]
        return Codes(layout, self.codes[:, slice(*columns)], scales, shifts, self.order)


def unpack(parts: Sequence[StoredRows], device: torch.device) -> Codes:
    """Rows of one matrix, below each other. Raises ModelInvalid for numbers that are not finite."""
    made = [_unpack(part, device) for part in parts]
    codes = made[0]
    if len(made) > 1:
        shifts = None if codes.shifts is None else torch.cat([one.shifts for one in made if one.shifts is not None])
        codes = codes._replace(
            codes=torch.cat([one.codes for one in made]), scales=torch.cat([one.scales for one in made]), shifts=shifts
        )
    if not _is_finite(codes):
        raise ModelInvalid(f"weights of {parts[0].name} are not finite, or their scales are too large", param="model")
    return codes


def _unpack(stored: StoredRows, device: torch.device) -> Codes:
    (rows, cols), words = stored.shape, _moved(stored.words, device)
    if stored.packing in _BLOCKS:
        elements = BLOCK_ELEMENTS[stored.packing]
        codes, scales, offsets = _BLOCKS[stored.packing](words.view(rows, cols // elements, -1))
        shifts = None if offsets is None else offsets.reshape(rows, -1).half()
        return Codes(stored.layout, codes.reshape(rows, cols), scales.reshape(rows, -1).half(), shifts)
    bits = 4 if stored.layout.code in ("u4", "e2m1") else 8
    codes = _UNPACKED[stored.packing](words, bits)[stored.first : stored.first + rows, :cols]
    order = None if stored.order is None else _moved(stored.order, device)
    assert stored.scales is not None
    scales, shifts = _moved(stored.scales, device), None
    if stored.shifts is not None:
        shifts = _moved(stored.shifts, device)
    return Codes(stored.layout, codes if order is None else codes[:, order], scales, shifts, order)


def _moved(values: Array, device: torch.device) -> Tensor:
    """Of arrays that repeat one number (blank weights) nothing is copied."""
    if values.ndim == 2 and values.size and not any(values.strides):
        return to_tensor(values[:1, :1].copy()).to(device).expand(values.shape)
    return to_tensor(values if values.flags.writeable else values.copy()).to(device)


def _is_finite(codes: Codes) -> bool:
    finite = codes.scales.isfinite().all()
    if codes.shifts is not None and codes.shifts.is_floating_point():
        finite &= codes.shifts.isfinite().all()
    if codes.layout.code == "e4m3":
        finite &= ((codes.codes & 127) < 127).all()
    return finite.is_meta or bool(finite)


def _octets(words: Tensor, bits: int) -> Tensor:
    return words.view(torch.uint8)


def _flipped(words: Tensor, bits: int) -> Tensor:
    return words.view(torch.uint8) ^ 128


def _nibbles(words: Tensor, bits: int) -> Tensor:
    octets = words.view(torch.uint8)
    return torch.stack((octets & 15, octets >> 4), dim=-1).flatten(-2)


def _columns(words: Tensor, bits: int) -> Tensor:
    lines = words.t().contiguous()
    return _nibbles(lines, bits) if bits == 4 else lines.view(torch.uint8) ^ 128


def _awq(words: Tensor, bits: int) -> Tensor:
    places = torch.tensor(AWQ_PLACES, device=words.device)
    return _nibbles(words, bits).view(len(words), -1, 8)[..., places].flatten(-2).t()


_UNPACKED: dict[str, Callable[[Tensor, int], Tensor]] = {
    "octets": _octets,
    "flipped": _flipped,
    "nibbles": _nibbles,
    "columns": _columns,
    "awq": _awq,
}

Fields = tuple[Tensor, Tensor, Tensor | None]  # codes, scales, offsets


def _half(blocks: Tensor, at: int) -> Tensor:
    """The float16 field at byte `at` of blocks [rows, n, bytes]: [rows, n]"""
    return blocks[..., at : at + 2].contiguous().view(torch.float16)[..., 0]


def _halves(octets: Tensor) -> Tensor:
    """All low halves, then all high ones"""
    return torch.cat((octets & 15, octets >> 4), dim=-1)


def _split(octets: Tensor, *sizes: int) -> Tensor:
    """The last dimension as several."""
    return octets.reshape(*octets.shape[:-1], *sizes)


def _shifts(count: int, step: int, like: Tensor) -> Tensor:
    return torch.arange(0, count * step, step, dtype=torch.uint8, device=like.device)


def _fifth(words: Tensor) -> Tensor:
    """[..., 4] octets -> [..., 32]: 16 where the bit is set"""
    return ((words[..., None] >> _shifts(8, 1, words) & 1) << 4).flatten(-2)


def _q4_0(blocks: Tensor) -> Fields:
    return _halves(blocks[..., 2:]), _half(blocks, 0), None


def _q4_1(blocks: Tensor) -> Fields:
    return _halves(blocks[..., 4:]), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Tensor) -> Fields:
    return _halves(blocks[..., 6:]) | _fifth(blocks[..., 2:6]), _half(blocks, 0), None


def _q5_1(blocks: Tensor) -> Fields:
    return _halves(blocks[..., 8:]) | _fifth(blocks[..., 4:8]), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Tensor) -> Fields:
    return blocks[..., 2:], _half(blocks, 0), None


def _q4_k(blocks: Tensor) -> Fields:
    return _halves(_split(blocks[..., 16:], 4, 32)), *_k_factors(blocks)


def _q5_k(blocks: Tensor) -> Fields:
    codes = _split(_halves(_split(blocks[..., 48:], 4, 32)).flatten(-2), 8, 32)
    fifth = (blocks[..., None, 16:48] >> _shifts(8, 1, blocks)[:, None] & 1) << 4
    return codes | fifth, *_k_factors(blocks)


def _q6_k(blocks: Tensor) -> Fields:
    low = _halves(_split(blocks[..., :128], 2, 64))
    high = (_split(blocks[..., 128:192], 2, 1, 32) >> _shifts(4, 2, blocks)[:, None] & 3) << 4
    scales = blocks[..., 192:208].view(torch.int8).float() * _half(blocks, 208).float()[..., None]
    return low | high.flatten(-2), scales, None


def _k_factors(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and offsets of eight sub-blocks: see `dequantize.k_scales`."""
    first, second, rest = blocks[..., 4:8], blocks[..., 8:12], blocks[..., 12:16]
    scales = torch.cat((first & 63, rest & 15 | first >> 6 << 4), dim=-1) * _half(blocks, 0).float()[..., None]
    minima = torch.cat((second & 63, rest >> 4 | second >> 6 << 4), dim=-1) * _half(blocks, 2).float()[..., None]
    return scales, -minima


_BLOCKS: dict[str, Callable[[Tensor], Fields]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
