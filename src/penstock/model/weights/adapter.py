"""The numbers of a LoRA adapter, as low-rank matrices of the projections that a layer has: fused modules are split, and
rows are in the order that the weights of the base have here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, Literal, NamedTuple

import numpy as np

from penstock.errors import ModelInvalid, ModelNotFound
from penstock.kernels.arrays import BFLOAT16, Array, to_float32
from penstock.model.weights.map import extents, halves_from_pairs
from penstock.store.adapter_spec import AdapterFiles, LowRank, StoredTensor
from penstock.store.spec import ModelSpec

Projection = Literal["q", "k", "v", "o", "gate", "up", "down", "head", "embed"]

DTYPES: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": BFLOAT16}
PAIRED = "llama"  # architecture whose q and k rows llama.cpp orders for rotation in pairs, in adapters as in models


class Delta(NamedTuple):
    """y += scale · B·(A·x) for one projection. Of "embed" x is one-hot: A has a column for each token."""

    layer: int | None
    projection: Projection
    a: Array  # [rank, inputs] float32 or float16
    b: Array  # [outputs, rank], likewise
    scale: float


def read_adapter(files: AdapterFiles, model: ModelSpec, *, halves: bool = False) -> Iterator[Delta]:
    """All deltas, layer by layer, copied into memory. `check_adapter` has been passed. `halves`: what is stored as
    float16 stays so; otherwise all are float32."""
    try:
        with files.weights.open("rb") as file:
            for one in files.spec.low_ranks:
                a, b = (_read(file, tensor, one, files, halves) for tensor in (one.a, one.b))
                yield from _deltas(one, a, b, files, model)
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


def _read(file: BinaryIO, tensor: StoredTensor, one: LowRank, files: AdapterFiles, halves: bool) -> Array:
    """Not mapped: a file that is cut off meanwhile is an error here, and a signal that ends the process there."""
    raw = np.empty(tensor.end - tensor.begin, dtype=np.uint8)
    file.seek(tensor.begin)
    if file.readinto(raw.data) != len(raw):  # type: ignore[attr-defined]
        raise ModelInvalid(f"{files.weights} is truncated in {one.label}", param="adapter")
    stored = raw.view(DTYPES[tensor.dtype]).reshape(tensor.shape)
    values = stored if halves and tensor.dtype == "F16" else to_float32(stored)
    if not _is_finite(values):
        raise ModelInvalid(f"{files.weights}: {one.label} has numbers that are not finite", param="adapter")
    return values
