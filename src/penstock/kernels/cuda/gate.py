"""The gated activation of an MLP, in one pass over gate and up."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from penstock.kernels.cuda.launch import Launcher, let_next_begin, wait
from penstock.kernels.interface import Activation

BLOCK = 1024


@triton.jit
def activate(gate, SILU: tl.constexpr):
    if SILU:
        result = gate * tl.sigmoid(gate)
    else:  # gelu: 0.5 * (1 + tanh(y)) is sigmoid(2 * y)
        result = gate * tl.sigmoid(1.5957691216057308 * (gate + 0.044715 * gate * gate * gate))
    return result


@triton.jit
def _kernel(gate_up, out, WIDTH: tl.constexpr, SILU: tl.constexpr, BLOCK: tl.constexpr, OVERLAP: tl.constexpr):
    let_next_begin(OVERLAP)
    wait(OVERLAP)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < WIDTH
    gate = tl.load(gate_up + row * 2 * WIDTH + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * WIDTH + WIDTH + at, mask=inside, other=0.0)
    tl.store(out + row * WIDTH + at, (activate(gate, SILU) * up.to(tl.float32)).to(up.dtype), mask=inside)


_launch = Launcher(_kernel)


def gate(gate_up: Tensor, activation: Activation, out: Tensor | None = None, *, exact: bool = False) -> Tensor:
    """`exact`: no product and sum become one instruction."""
    options = {"enable_fp_fusion": False} if exact else {}
    tokens, width = gate_up.shape[0], gate_up.shape[1] // 2
    if out is None:
        out = torch.empty(tokens, width, dtype=gate_up.dtype, device=gate_up.device)
    grid = (tokens, -(-width // BLOCK), 1)
    _launch(grid, out.dtype, (gate_up, out), (width, activation == "silu", BLOCK), **options)
    return out
