"""Quantized keys and values: what the Triton kernels store and read, in plain torch. `cuda.kv_codes` has the layout."""

from __future__ import annotations

import math
from functools import cache

import torch
from torch import Tensor

from penstock.kernels.interface import BlockMap

INT4_LEVELS = (6, 18, 31, 44, 58, 75, 96, 127)
INT4_UNIT = 1.0 / 128.0
FP8_LARGEST, INT8_LARGEST = 448.0, 127.0


def hadamard(x: Tensor) -> Tensor:
    """The transform of each head [..., dim], in blocks of the largest power of two that divides dim; float32."""
    dim = x.shape[-1]
    block = dim & -dim
    blocks = x.float().reshape(*x.shape[:-1], dim // block, block)
    return torch.matmul(blocks, _matrix(block).to(x.device)).flatten(-2)


@cache
def _matrix(size: int) -> Tensor:
    matrix = torch.ones(1, 1)
    while len(matrix) < size:
        matrix = torch.kron(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), matrix)
    return matrix / math.sqrt(size)


def store(x: Tensor, pages: Tensor, scales: Tensor | None, block_map: BlockMap) -> None:
    """Keys or values [tokens, kv_heads, dim] to their slots."""
    block_size = pages.shape[1]
    block, offset = block_map.targets // block_size, block_map.targets % block_size
    if scales is None:
        pages[block, offset] = x.to(pages.dtype)
        return
    if pages.dtype == torch.uint8:
        pages[block, offset], scale = _int4(hadamard(x))
        scales.transpose(2, 3)[block, :, offset] = scale.to(scales.dtype)
        return
    largest = FP8_LARGEST if pages.dtype == torch.float8_e4m3fn else INT8_LARGEST
    x = x.float()
    if scales.dim() == 1:
        codes = (x / scales).clamp(-largest, largest)
    else:
        scale = x.abs().amax(-1) / largest
        scales[block, :, offset] = scale
        codes = x * torch.where(scale > 0, 1.0 / scale, 0.0)[..., None]
    codes = codes.round() if pages.dtype == torch.int8 else codes
    raw = _divided(codes.to(pages.dtype).view(torch.uint8), 2).transpose(-1, -2).flatten(-2)
    pages.view(torch.uint8)[block, offset] = raw


def _divided(x: Tensor, parts: int) -> Tensor:
    """[..., n] -> [..., parts, n / parts]"""
    return x.reshape(*x.shape[:-1], parts, x.shape[-1] // parts)


def _int4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Codes [..., dim / 2] of x [..., dim], and the scales [..., 4] of their quarters."""
    parts = _divided(x, 4)
    scale = _refined_scale(parts.abs())
    place = _places(parts.abs() * torch.where(scale > 0, 1.0 / (scale * INT4_UNIT), 0.0)[..., None])
    codes = (place + 8 * (parts < 0)).to(torch.uint8)
    first, second, third, fourth = codes.unbind(-2)
    return torch.stack((first | second << 4, third | fourth << 4), -1).flatten(-2), scale


def _refined_scale(sizes: Tensor) -> Tensor:
    """The one that reaches the largest number, then the one with the least squared error for its codes."""
    reaching = sizes.amax(-1, keepdim=True) / INT4_LEVELS[-1]
    levels = torch.tensor(INT4_LEVELS, device=sizes.device, dtype=torch.float32)
    level = levels[_places(sizes * torch.where(reaching > 0, 1.0 / reaching, 0.0))]
    scale = (sizes * level).sum(-1) / level.square().sum(-1) / INT4_UNIT
    return scale.clamp(max=65504.0).half().float()


def _places(sizes: Tensor) -> Tensor:
    levels = torch.tensor(INT4_LEVELS, device=sizes.device, dtype=torch.float32)
    return (sizes[..., None] > (levels[1:] + levels[:-1]) / 2).sum(-1)


def load(pages: Tensor, scales: Tensor | None) -> Tensor:
    """All keys or values of the pages as they were stored, float32 [blocks, block_size, kv_heads, dim]."""
    numbers = load_rotated(pages, scales)
    return hadamard(numbers) if pages.dtype == torch.uint8 else numbers


def load_rotated(pages: Tensor, scales: Tensor | None) -> Tensor:
    """As they are in memory: int4 after its Hadamard transform."""
    if scales is None:
        return pages.float()
    raw = pages.view(torch.uint8)
    if pages.dtype == torch.uint8:
        low, high = raw & 15, raw >> 4
        codes = torch.stack((low[..., ::2], high[..., ::2], low[..., 1::2], high[..., 1::2]), -2).long()
        levels = torch.tensor(INT4_LEVELS, device=pages.device, dtype=torch.float32)[codes & 7]
        numbers = torch.where(codes >= 8, -levels, levels) * INT4_UNIT  # [blocks, block_size, heads, 4, dim / 4]
        return (numbers * scales.float().permute(0, 3, 1, 2)[..., None]).flatten(-2)
    ordered = _divided(raw, raw.shape[-1] // 2).transpose(-1, -2).flatten(-2)
    numbers = ordered.contiguous().view(pages.dtype).float()
    return numbers * (scales if scales.dim() == 1 else scales.transpose(1, 2)[..., None])
