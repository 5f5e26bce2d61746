"""The codes of GGUF's block formats as `codes.Codes`. `pack` knows where they are in a block."""

from __future__ import annotations

import numpy as np

from penstock.kernels.arrays import Array
from penstock.kernels.cpu.packed import BLOCK, NIBBLES
from penstock.model.weights.codes import ZEROS, Codes, Layout
from penstock.model.weights.pack import CHUNK, GGUF_FORMATS

LAYOUTS = {
    "Q4_0": Layout("u4", BLOCK),
    "Q4_1": Layout("u4", BLOCK, shift="offsets"),
    "Q5_0": Layout("u5", BLOCK),
    "Q5_1": Layout("u5", BLOCK, shift="offsets"),
    "Q8_0": Layout("s8", BLOCK),
    "Q4_K": Layout("u4", BLOCK, shift="offsets"),
    "Q5_K": Layout("u5", BLOCK, shift="offsets"),
    "Q6_K": Layout("u6", BLOCK // 2),
}


def decode_blocks(stored: str, blocks: Array, cols: int) -> Codes:
    """`blocks` is [rows, bytes of a row] uint8."""
    rows, layout = len(blocks), LAYOUTS[stored]
    codes = np.empty((rows, cols), dtype=np.uint8)
    scales = np.empty((rows, cols // layout.group), dtype=np.float16)
    offsets = np.empty_like(scales) if layout.shift else None
    step = max(CHUNK // cols, 1)  # passes over so much stay in the processor's cache
    for begin in range(0, rows, step):
        chunk = slice(begin, begin + step)
        part = _decode(stored, blocks[chunk])
        codes[chunk] = part.codes.reshape(-1, cols)
        scales[chunk] = part.scales.reshape(len(part.scales), -1)
        if offsets is not None:
            offsets[chunk] = part.shifts
    return Codes(layout, codes, scales, offsets)


def _decode(stored: str, blocks: Array) -> Codes:
    kind, decode = GGUF_FORMATS[stored]
    layout = LAYOUTS[stored]
    codes, scales, offsets, flip = decode(blocks)
    if kind in NIBBLES:
        split = np.empty((*codes.shape[:-1], BLOCK), dtype=np.uint8)
        split[..., : BLOCK // 2] = codes & 15
        split[..., BLOCK // 2 :] = codes >> 4
        codes = split
    elif layout.shift is None:  # of weight 0 it is 128 there
        codes = (codes ^ np.uint8(flip)) + np.uint8((ZEROS.get(layout.code, 0) - 128) % 256)
    return Codes(layout, codes, scales, offsets)
