"""Attention of the Triton kernels over random sequences, against the torch reference over the same numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence

import torch
from torch import Tensor

from helpers.paged_model import Row, make_batch
from helpers.triton_device import DEVICE
from penstock.kernels.cuda import decode_attention, kv_codes
from penstock.kernels.cuda.kv_codes import PLAIN
from penstock.kernels.cuda_ops import CudaOperations
from penstock.kernels.interface import BlockMap, Pages
from penstock.kernels.reference import kv_codes as reference
from penstock.kernels.torch_ops import TorchOperations

LAYERS = 2  # of which the second finds what the first one leaves behind
STATIC_SCALE = 0.0078125


def numbers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator(DEVICE).manual_seed(seed)
    return torch.randn(*shape, generator=generator, device=DEVICE).to(dtype)


def close(ours: Tensor, theirs: Tensor) -> None:
    """Relative to the size of the whole: single numbers may cancel to nothing."""
    assert ours.dtype == theirs.dtype
    error = (ours.double() - theirs.double()).norm() / theirs.double().norm()
    assert error < (1e-5 if ours.dtype == torch.float32 else 1e-2)  # NaN never passes


def nan_pages(kinds: tuple[str, str], shape: tuple[int, int, int, int], dtype: torch.dtype) -> Pages:
    """Keys and values of these kinds that are NaN wherever nothing is written: of integers the scales are."""

    def full(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if dtype.is_floating_point:
            return torch.full(tuple(shape), torch.nan, device=DEVICE).to(dtype)
        return torch.full(tuple(shape), 77, dtype=dtype, device=DEVICE)

    (keys, key_scales), (values, value_scales) = (
        kv_codes.empty("fp8" if kind == "static" else kind, shape, dtype, full) for kind in kinds
    )
    static = torch.tensor([STATIC_SCALE], device=DEVICE)
    return Pages(
        keys,
        values,
        static if kinds[0] == "static" else key_scales,
        static if kinds[1] == "static" else value_scales,
    )


class Case:
    """Random sequences in random blocks; whatever is not theirs is NaN."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        block_size: int,
        dtype: torch.dtype,
        window: int = 0,
        kinds: tuple[str, str] = PLAIN,
    ) -> None:
        """`rows` are (tokens already in the cache, tokens of this step)."""
        blocks_of = [-(-(start + count) // block_size) for start, count in rows]
        total = sum(blocks_of) + 1
        free = random.Random(0).sample(range(1, total), total - 1)
        self.pages = pages = nan_pages(kinds, (total, block_size, kv_heads, head_dim), dtype)
        made = []
        for index, ((start, count), number) in enumerate(zip(rows, blocks_of, strict=True)):
            blocks = [free.pop() for _ in range(number)]
            position = torch.arange(start + count, device=DEVICE)
            slots = torch.tensor(blocks, device=DEVICE)[position // block_size] * block_size + position % block_size
            for seed, (part, scales) in enumerate(((pages.keys, pages.key_scales), (pages.values, pages.value_scales))):
                filled = numbers(number * block_size, kv_heads, head_dim, dtype=dtype, seed=2 * index + seed)
                reference.store(filled[: start + count], part, scales, BlockMap(slots, slots))
            left_behind = max(0, start - window + 1) // block_size if window else 0
            blocks[:left_behind] = [0] * left_behind
            made.append(Row([0] * (start + count), start, count, [blocks]))
        self.rows = made
        self.batch = make_batch(made, block_size, DEVICE)
        self.q = numbers(self.batch.host_starts[-1], heads, head_dim, dtype=dtype, seed=99)
        self.window = window

    def check(self, softcap: float = 0.0, *, token_rows: bool = False) -> None:
        """`token_rows`: as graphs have it, where every token is a row of its own. Queries are those of the keys as they
        are stored."""
        settings = {"scale": 0.3, "window": self.window, "softcap": softcap}
        stored = self.pages
        values = reference.load(stored.values, stored.value_scales)
        if token_rows:
            of = torch.tensor([index for index, row in enumerate(self.rows) for _ in range(row.count)], device=DEVICE)
            lengths = [row.start + n for row in self.rows for n in range(1, row.count + 1)]
            left = [min(row.count - n, 16) for row in self.rows for n in range(row.count)]
            ours = torch.full_like(self.q.flatten(1), torch.nan)
            tables = self.batch.maps[0].tables[of]
            for table, length in zip(tables, lengths, strict=True):  # no further than they reach
                table[-(-length // stored.keys.shape[1]) :] = -(1 << 20)
            on_device = [torch.tensor(numbers_, dtype=torch.int32, device=DEVICE) for numbers_ in (lengths, left)]
            pieces = decode_attention.plan(self.q, stored, *on_device, self.window)
            for _ in range(LAYERS):
                ours.fill_(torch.nan)
                decode_attention.decode_attention(self.q, stored, tables, on_device[0], pieces, ours, **settings)
            values = reference.load_rotated(stored.values, stored.value_scales)
        else:
            ops = CudaOperations()
            for _ in range(LAYERS):
                ours = ops.attention(self.q, stored, self.batch.maps[0], self.batch, **settings)
        keys = reference.load_rotated(stored.keys, stored.key_scales)
        batch = make_batch(self.rows, stored.keys.shape[1])
        theirs = TorchOperations().attention(
            self.q.float().cpu(), Pages(keys.cpu(), values.cpu()), batch.maps[0], batch, **settings
        )
        close(ours, theirs.to(DEVICE, ours.dtype))
