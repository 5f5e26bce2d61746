"""Products with packed weights alone: libraries of kernels in turns, one thread, weights from memory.

    python bench/products.py [NAME=PATH ...] [--isa avx2] [--kinds U4,U8] [--tokens 1,8,16] [--inputs 2048]

PATH is a libpenstock.so, of another commit for example; the one of this tree is always there. Each call multiplies the
next of 24 matrices, which together are larger than the caches (--megabytes 64), so it takes a few milliseconds at most:
the least time of all calls is undisturbed even on a busy machine. Shown are nanoseconds per panel of 16 rows, block of
32 inputs and token, and the ratio to the first library.
"""

from __future__ import annotations

import argparse
import ctypes
import time

import numpy as np

from penstock.kernels.cpu import library
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import BLOCK, PANEL, Kind, PackedMatrix, Segment, allocate, segment_bytes

MATRICES = 24
MOST_BYTES_PER_BLOCK = 64  # of activations, in any commit


class Library:
    def __init__(self, path: str, isa: str | None, x: np.ndarray, arena: Arena) -> None:
        native = ctypes.CDLL(path)
        for name in ("penstock_quantize", "penstock_linear"):
            function = getattr(native, name)
            function.restype, function.argtypes = library.SIGNATURES[name]
        if isa is not None and not native.penstock_select(isa.encode()):
            raise SystemExit(f"{path} has no {isa} kernels for this machine")
        self.x = arena.empty(x.size // BLOCK * MOST_BYTES_PER_BLOCK, dtype=np.uint8)
        native.penstock_quantize(x.ctypes.data, *x.shape, self.x.ctypes.data)
        self._linear = native.penstock_linear

    def seconds(self, matrix: PackedMatrix, tokens: int, out: np.ndarray) -> float:
        rows = matrix.shape[0]
        begin = time.perf_counter()
        self._linear(matrix.address, None, self.x.ctypes.data, tokens, None, out.ctypes.data, rows, 0, 0, 1)
        return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("libraries", nargs="*", metavar="NAME=PATH")
    parser.add_argument("--isa")
    parser.add_argument("--kinds", default="U4,U4_OFFSET,U8")
    parser.add_argument("--tokens", default="1,2,4,8,12,16,24,32")
    parser.add_argument("--inputs", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--megabytes", type=int, default=64)
    options = parser.parse_args()
    counts = [int(count) for count in options.tokens.split(",")]
    random, arena = np.random.default_rng(0), Arena()
    inputs = options.inputs
    x = random.standard_normal((max(counts), inputs), dtype=np.float32)
    paths = dict(part.split("=", 1) for part in options.libraries) | {"this tree": str(library.PATH)}
    libraries = {name: Library(path, options.isa, x, arena) for name, path in paths.items()}
    for name in options.kinds.split(","):
        kind = Kind[name]
        rows = (options.megabytes << 20) // MATRICES // segment_bytes(kind, PANEL, inputs) * PANEL
        matrices = [PackedMatrix([random_segment(random, kind, rows, inputs, arena)], inputs) for _ in range(MATRICES)]
        out = arena.empty(max(counts), rows, dtype=np.float32)
        for tokens in counts:
            least = dict.fromkeys(libraries, float("inf"))
            turn = 0
            for _ in range(options.rounds):
                for used, native in libraries.items():
                    for _ in range(3):  # the first one comes after another library's instructions
                        turn = (turn + 1) % MATRICES
                        least[used] = min(least[used], native.seconds(matrices[turn], tokens, out))
            unit, first = 1e9 / (rows // PANEL * (inputs // BLOCK) * tokens), next(iter(least.values()))
            figures = (f"{used} {taken * unit:.3f} ({taken / first:.3f})" for used, taken in least.items())
            print(f"{name:9} {tokens:3} ", "  ".join(figures), flush=True)


def random_segment(random: np.random.Generator, kind: Kind, rows: int, inputs: int, arena: Arena) -> Segment:
    segment = allocate(kind, rows, inputs, arena)
    segment.codes.reshape(-1)[:] = random.integers(0, 256, segment.codes.size, dtype=np.uint8)
    for numbers in (segment.scales, segment.offsets):
        if numbers is not None:
            numbers.reshape(-1)[:] = random.uniform(0.001, 0.01, numbers.size).astype(np.float16)
    return segment


if __name__ == "__main__":
    main()
