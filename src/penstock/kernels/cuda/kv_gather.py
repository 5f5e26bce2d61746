"""Keys or values of some slots as numbers of the type that the model computes in, side by side: for attention that does
not read KV pages itself."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.kv_codes import INT4_SCALE, kind, num_parts, num_scales, tile_width, unpack
from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait

SLOTS_AT_ONCE = 32


@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["slots"])
def _kernel(
    pages,
    scales,
    slots,
    out,
    count,
    KIND: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    N: tl.constexpr,
    OVERLAP: tl.constexpr,
):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    number = tl.program_id(0) * N + tl.arange(0, N)
    head = tl.program_id(1)
    there = number < count
    slot = tl.load(slots + number, mask=there, other=0)
    SIZE: tl.constexpr = DIM // num_parts(KIND)
    column = tl.arange(0, tile_width(KIND, DIM))
    real = there[:, None] & (column < SIZE)[None, :]
    units = pages.to(tl.pointer_type(tl.int16), bitcast=True)
    raw = tl.load(units + ((slot * HEADS + head) * SIZE)[:, None] + column[None, :], mask=real, other=0)
    parts = unpack(raw, KIND, out.dtype.element_ty == tl.float32)
    at = (slot // BLOCK_SIZE * HEADS + head) * num_scales(KIND) * BLOCK_SIZE + slot % BLOCK_SIZE
    place = out + ((number.to(tl.int64) * HEADS + head) * DIM)[:, None] + column[None, :]
    for part in tl.static_range(num_parts(KIND)):
        if KIND == "static":
            scale = tl.load(scales)
        elif KIND == "int4":
            scale = tl.load(scales + at + part * BLOCK_SIZE, mask=there, other=0.0)[:, None].to(tl.float32) * INT4_SCALE
        else:
            scale = tl.load(scales + at, mask=there, other=0.0)[:, None]
        numbers = parts[part].to(tl.float32) * scale
        tl.store(place + part * SIZE, numbers.to(out.dtype.element_ty), mask=real)


_launch = Launcher(_kernel)


def gather(pages: Tensor, scales: Tensor | None, slots: Tensor, head_dim: int, dtype: torch.dtype) -> Tensor:
    """[slots] -> [slots, kv_heads, head_dim]. int4 comes as it is stored, after its Hadamard transform."""
    block_size, heads = pages.shape[1:3]
    if scales is None:
        return pages.flatten(0, 1).index_select(0, slots)
    count = len(slots)
    out = torch.empty(count, heads, head_dim, dtype=dtype, device=pages.device)
    _launch(
        (-(-count // SLOTS_AT_ONCE), heads, 1),
        (dtype, pages.dtype),
        (pages, scales, slots, out, count),
        (kind(pages, scales), heads, head_dim, block_size, SLOTS_AT_ONCE),
    )
    return out
