"""Prefill attention of long chunks through cuDNN's flash attention, on keys and values gathered from the KV pages: 550
to 690 TFLOP/s on an H200, where the paged kernel of `prefill_attention` has 310 to 450.

cuDNN takes about 50 ms to prepare for a new shape. So lengths are rounded up to whole units, which costs little for
chunks of this size, and chunks behind a prefix that is not of whole units are left to `prefill_attention`. Padding
follows all real tokens, where the causal mask hides it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.kv_gather import gather
from penstock.kernels.cuda.launch import power_of_2
from penstock.kernels.interface import Batch, BlockMap, Pages
from penstock.kernels.torch_internals import cudnn_attention

UNIT = 1024  # tokens
# Heads times tokens from which on the gain exceeds the host time of a call, about 250 µs.
WORTHWHILE = 16 * 4096
HEADS_AT_ONCE = 8


class Chunk(NamedTuple):
    """Packed tokens start .. end - 1, and the slots of their keys in the pages."""

    start: int
    end: int
    slots: Tensor  # [whole units] of the chunk itself; padding repeats the last one
    prefix: Tensor | None  # [prefix]


@triton.jit
def _merge(
    first,
    second,
    first_lse,
    second_lse,
    out,
    padded,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    SOME: tl.constexpr,
    D: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * SOME + tl.arange(0, SOME)
    dim = tl.arange(0, D)
    weight = tl.sigmoid(
        tl.load(first_lse + head * padded + token, mask=head < HEADS, other=0.0)
        - tl.load(second_lse + head * padded + token, mask=head < HEADS, other=0.0)
    )[:, None]
    at = token * HEADS * DIM + head[:, None] * DIM + dim[None, :]
    real = (head < HEADS)[:, None] & (dim < DIM)[None, :]
    one = tl.load(first + at, mask=real, other=0.0).to(tl.float32)
    two = tl.load(second + at, mask=real, other=0.0).to(tl.float32)
    tl.store(out + at, (one * weight + two * (1.0 - weight)).to(out.dtype.element_ty), mask=real)


def available(q: Tensor) -> bool:
    """Whether cuDNN has such a kernel."""
    known = q.is_cuda and q.dtype in (torch.float16, torch.bfloat16) and q.shape[2] <= 128 and q.shape[2] % 8 == 0
    built_in: bool = torch.backends.cudnn.is_available()  # type: ignore[no-untyped-call]
    on_device = known and built_in and torch.cuda.get_device_capability(q.device) >= (9, 0)
    return on_device and cudnn_attention() is not None


def suits(batch: Batch, row: int, heads: int) -> bool:
    count = batch.host_starts[row + 1] - batch.host_starts[row]
    return heads * count >= WORTHWHILE and (batch.host_lengths[row] - count) % UNIT == 0


def chunk(batch: Batch, block_map: BlockMap, block_size: int, row: int) -> Chunk:
    start, end, length = batch.host_starts[row], batch.host_starts[row + 1], batch.host_lengths[row]
    own, before = block_map.targets[start:end], length - (end - start)
    if padding := (start - end) % UNIT:
        own = torch.cat((own, own[-1:].expand(padding)))
    if before == 0:
        return Chunk(start, end, own, None)
    positions = torch.arange(before, device=own.device)
    blocks = block_map.tables[row].index_select(0, positions // block_size).to(torch.int64)
    return Chunk(start, end, own, blocks * block_size + positions % block_size)


def attend(q: Tensor, pages: Pages, planned: Chunk, scale: float) -> Tensor:
    """q [tokens, heads, head_dim] -> [end - start, heads * head_dim]"""
    count, padded = planned.end - planned.start, planned.slots.shape[0]
    queries = q[planned.start : planned.end]
    if count < padded:
        queries = F.pad(queries, (0, 0, 0, 0, 0, padded - count))
    own, own_lse = _attend(queries, pages, planned.slots, scale, causal=True)
    if planned.prefix is None:
        return own[:count].flatten(1)
    other, other_lse = _attend(queries, pages, planned.prefix, scale, causal=False)
    heads, head_dim = q.shape[1:]
    out = torch.empty(count, heads * head_dim, dtype=q.dtype, device=q.device)
    _merge[(count, -(-heads // HEADS_AT_ONCE))](
        own, other, own_lse, other_lse, out, padded, heads, head_dim, HEADS_AT_ONCE, power_of_2(head_dim)
    )
    return out


def _attend(q: Tensor, pages: Pages, slots: Tensor, scale: float, *, causal: bool) -> tuple[Tensor, Tensor]:
    """[tokens, heads, head_dim] -> the same, and the logarithm of each softmax's sum, [heads, tokens]."""
    k = gather(pages.keys, pages.key_scales, slots, q.shape[2], q.dtype)
    v = gather(pages.values, pages.value_scales, slots, q.shape[2], q.dtype)
    operator = cudnn_attention()
    assert operator is not None  # see `available`
    inputs = (x.transpose(0, 1)[None] for x in (q, k, v))  # [1, heads, tokens, head_dim]
    out, lse = operator(*inputs, causal=causal, scale=scale)
    return out[0].transpose(0, 1).contiguous(), lse.view(q.shape[1], q.shape[0])
