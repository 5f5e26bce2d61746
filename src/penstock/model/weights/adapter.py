"""The numbers of a LoRA adapter, as low-rank matrices of the projections that a layer has: fused modules are split, and
rows are in the order that the weights of the base have here. Of one rank of several (tensor parallelism) they are split
as the base's weights: rows of B where the base is split by rows, columns of A where it is split by columns."""

from __future__ import annotations

from collections.abc import Iterator
from io import BufferedReader
from typing import Any, Literal, NamedTuple

import numpy as np

from penstock.errors import ModelInvalid, ModelNotFound
from penstock.kernels.arrays import BFLOAT16, Array, to_float32
from penstock.model.weights.map import Extent, extents, halves_from_pairs
from penstock.model.weights.place import WHOLE, Shard, spans
from penstock.model.weights.source import Span
from penstock.store.adapter_spec import AdapterFiles, LowRank, StoredTensor
from penstock.store.spec import ModelSpec
from penstock.store.tensor_parallel import rank_spec

Projection = Literal["q", "k", "v", "o", "gate", "up", "down", "head", "embed"]

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": BFLOAT16}
# Outputs and inputs of each module.
SIDES: dict[str, tuple[Extent, Extent]] = {
    "q": ("q", "hidden"),
    "k": ("kv", "hidden"),
    "v": ("kv", "hidden"),
    "qkv": ("qkv", "hidden"),
    "o": ("hidden", "q"),
    "gate": ("ffn", "hidden"),
    "up": ("ffn", "hidden"),
    "gate_up": ("gate_up", "hidden"),
    "down": ("hidden", "ffn"),
    "head": ("vocab", "hidden"),
    "embed": ("hidden", "vocab"),
}
PAIRED = "llama"  # architecture whose q and k rows llama.cpp orders for rotation in pairs, in adapters as in models


class Delta(NamedTuple):
    """y += scale · B·(A·x) for one projection. Of "embed" x is one-hot: A has a column for each token."""

    layer: int | None
    projection: Projection
    a: Array  # [rank, inputs] float32 or float16
    b: Array  # [outputs, rank], likewise
    scale: float


def read_adapter(
    files: AdapterFiles, model: ModelSpec, *, halves: bool = False, shard: Shard = WHOLE
) -> Iterator[Delta]:
    """All deltas, layer by layer, copied into memory. `check_adapter` has been passed. `halves`: what is stored as
    float16 stays so; otherwise all are float32. `shard`: of which rank; it reads nothing else."""
    try:
        with files.weights.open("rb") as file:
            for one in files.spec.low_ranks:
                outputs, inputs = (spans(extent, model, shard) for extent in SIDES[one.module])
                ranks = (Span(0, one.rank),)
                a = _read(file, one.a, (inputs, ranks) if one.transposed_a else (ranks, inputs), one, files, halves)
                b = _read(file, one.b, (outputs, ranks), one, files, halves)
                yield from _deltas(one, a, b, files, rank_spec(model, shard.world))
    except FileNotFoundError:
        raise ModelNotFound(f"no such file: {files.weights}", param="adapter") from None
    except OSError as error:
        raise ModelInvalid(f"cannot read {files.weights}: {error.strerror}", param="adapter") from None


def _deltas(one: LowRank, a: Array, b: Array, files: AdapterFiles, model: ModelSpec) -> Iterator[Delta]:
    if one.transposed_a:
        a = np.ascontiguousarray(a.T)
    for projection, rows in _split(one.module, b, model):
        if projection in ("q", "k") and files.spec.architecture == PAIRED:
            rows = halves_from_pairs(rows, model)
        yield Delta(one.layer, projection, a, rows, one.scale)


def _split(module: str, b: Array, model: ModelSpec) -> Iterator[tuple[Projection, Array]]:
    parts: dict[str, tuple[tuple[Projection, int], ...]] = {
        "qkv": (("q", extents(model)["q"]), ("k", extents(model)["kv"]), ("v", extents(model)["kv"])),
        "gate_up": (("gate", model.intermediate_size), ("up", model.intermediate_size)),
    }
    if module not in parts:
        yield module, b  # type: ignore[misc]  # the other modules are projections
        return
    start = 0
    for projection, size in parts[module]:
        yield projection, b[start : start + size]
        start += size


def _is_finite(values: Array) -> bool:
    if values.dtype == np.float16:  # by their exponents: numpy takes ten times as long
        return not bool(((values.view(np.uint16) & 0x7C00) == 0x7C00).any())
    return bool(np.isfinite(values).all())


def _read(
    file: BufferedReader,
    tensor: StoredTensor,
    region: tuple[tuple[Span, ...], tuple[Span, ...]],
    one: LowRank,
    files: AdapterFiles,
    halves: bool,
) -> Array:
    """Some rows and columns. Not mapped: a file that is cut off meanwhile is an error here, and a signal that ends the
    process there."""
    rows, ((first, last),) = region  # no module has inputs of several sections
    dtype, width = DTYPES[tensor.dtype], tensor.shape[1]
    stored = np.empty((sum(end - begin for begin, end in rows), last - first), dtype=dtype)
    pieces = rows if last - first == width else [Span(row, row + 1) for span in rows for row in range(*span)]
    place = 0
    for begin, end in pieces:
        piece = stored[place : place + end - begin]
        file.seek(tensor.begin + (begin * width + first) * dtype.itemsize)
        if file.readinto(piece.view(np.uint8).data) != piece.nbytes:
            raise ModelInvalid(f"{files.weights} is truncated in {one.label}", param="adapter")
        place += end - begin
    values = stored if halves and tensor.dtype == "F16" else to_float32(stored)
    if not _is_finite(values):
        raise ModelInvalid(f"{files.weights}: {one.label} has numbers that are not finite", param="adapter")
    return values
