"""Token embedding."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, let_next_begin, power_of_2, wait


@triton.jit(do_not_specialize=["scale"])
def _kernel(tokens, table, out, scale, WIDTH: tl.constexpr, W: tl.constexpr, OVERLAP: tl.constexpr):
    wait(OVERLAP)
    let_next_begin(OVERLAP)  # only now: the next kernel may read at once what `decode_inputs` has written
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, W)
    vector = tl.load(table + tl.load(tokens + row) * WIDTH + column, mask=column < WIDTH)
    tl.store(out + row * WIDTH + column, (vector.to(tl.float32) * scale).to(vector.dtype), mask=column < WIDTH)


_launch = Launcher(_kernel)


def embed(tokens: Tensor, table: Tensor, scale: float) -> Tensor:
    """tokens [n] int64, table [vocab, width] -> [n, width]"""
    count, width = len(tokens), table.shape[1]
    out = torch.empty(count, width, dtype=table.dtype, device=table.device)
    _launch((count, 1, 1), table.dtype, (tokens, table, out, scale), (width, power_of_2(width)), num_warps=4)
    return out
