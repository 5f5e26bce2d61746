"""Decode attention of one layer on a GPU, by type of the KV cache: µs of a launch, and the rate at which keys, values
and scales are read.

    python bench/gpu_attention.py [--types bfloat16,fp8,int8,int4] [--rows 1,8,32,128] [--tokens 512,2048]

Heads of Llama-3.1-8B (32 and 8 of 128), random codes, blocks in random order, launches in a CUDA graph over sets of
pages that L2 does not hold. `--shape keys,warps,stages,at_once` tries another shape of the kernel for quantized types.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.kernels.cuda import decode_attention, decode_quantized, kv_codes
from penstock.kernels.interface import Pages

HEADS, KV_HEADS, DIM, BLOCK_SIZE = 32, 8, 128, 16
DEVICE = torch.device("cuda")
SET_BYTES = 250_000_000  # of 16-bit pages, all sets together: four times the L2 cache of an H200


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--types", default="bfloat16,fp8,int8,int4")
    arguments.add_argument("--rows", default="1,8,32,128")
    arguments.add_argument("--tokens", default="512,2048")
    arguments.add_argument("--shape", help="of the kernel for quantized types")
    options = arguments.parse_args()
    if options.shape:
        keys, warps, stages, at_once = map(int, options.shape.split(","))
        decode_quantized.SHAPES = {2: decode_quantized.Shape(keys, warps, stages)}
        decode_quantized.AT_ONCE = at_once
    for kind in options.types.split(","):
        found = [
            f"{rows} x {tokens}: {us:.1f} ({rate:.0f} GB/s)"
            for rows in map(int, options.rows.split(","))
            for tokens in map(int, options.tokens.split(","))
            for us, rate in [measure(kind, rows, tokens)]
        ]
        print(f"{kind:9} {options.shape or '':12} " + "  ".join(found), flush=True)


def measure(kind: str, rows: int, tokens: int) -> tuple[float, float]:
    blocks = rows * -(-tokens // BLOCK_SIZE)
    sets = max(2, min(64, SET_BYTES // (blocks * BLOCK_SIZE * KV_HEADS * DIM * 4) + 1))
    pages = [random_pages(kind, blocks + 1) for _ in range(sets)]
    tables = [torch.randperm(blocks, device=DEVICE).int().add_(1).view(rows, -1) for _ in range(sets)]
    q = torch.randn(rows, HEADS, DIM, device=DEVICE, dtype=torch.bfloat16)
    lengths = torch.full((rows,), tokens, device=DEVICE, dtype=torch.int32)
    out = torch.empty(rows, HEADS * DIM, device=DEVICE, dtype=torch.bfloat16)
    plan = decode_attention.plan(q, pages[0], lengths, None, 0)
    launches = max(sets, 8)

    def run() -> None:
        for number in range(launches):
            one, table = pages[number % sets], tables[number % sets]
            decode_attention.decode_attention(q, one, table, lengths, plan, out, scale=0.088, window=0, softcap=0.0)

    run()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    times = []
    for _ in range(9):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in "ab")
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / launches * 1e3)
    us = statistics.median(times[1:])
    read = sum(part.nbytes for part in kv_codes.in_memory(pages[0]) if part is not None) * blocks / (blocks + 1)
    return us, read / us / 1e3


def random_pages(kind: str, blocks: int) -> Pages:
    def random(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        if dtype == torch.float8_e4m3fn:
            return torch.randn(tuple(shape), device=DEVICE).mul_(50).to(dtype)
        if dtype in (torch.int8, torch.uint8):
            return torch.randint(0, 127, tuple(shape), device=DEVICE, dtype=dtype)
        return torch.rand(tuple(shape), device=DEVICE, dtype=dtype)

    shape = (blocks, BLOCK_SIZE, KV_HEADS, DIM)
    keys, _, values = kind.partition(",")
    (k, key_scales), (v, value_scales) = (
        kv_codes.empty(one, shape, torch.bfloat16, random) for one in (keys, values or keys)
    )
    return Pages(k, v, key_scales, value_scales)


if __name__ == "__main__":
    main()
