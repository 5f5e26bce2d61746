"""A model's parameters from a source, in three stages: read (`read`), place (`place`), form (`form`).

checkpoint ──Reader──► Rows ──Piece.place──► Rows of this rank ──DeviceForm──► Weight
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from penstock.errors import InvalidSetting, OutOfMemory
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.weight import Weight
from penstock.model.weights.form import DenseForm, DeviceForm, PackedForm, Packing, filled, parameter_dtype
from penstock.model.weights.loaded import Weights
from penstock.model.weights.map import WeightMap
from penstock.model.weights.pack import FORMATS
from penstock.model.weights.place import WHOLE, Placement, Shard, placements
from penstock.model.weights.read import Reader
from penstock.model.weights.source import Rows, Source
from penstock.store.spec import ModelSpec


def load(
    weight_map: WeightMap,
    source: Source,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    packing: Packing | None = None,
    shard: Shard = WHOLE,
) -> Weights:
    """`packing`: matrices and tables for the native kernels, and how; None: as tensors of `dtype`."""
    form: DeviceForm = DenseForm(dtype, device) if packing is None else PackedForm(packing, Arena())
    placed = list(placements(weight_map.parameters, source.format, spec, shard))
    reader = Reader(source, placed, weight_map, spec)
    matrices: dict[str, Weight] = {}
    vectors: dict[str, Tensor] = {}
    try:
        for one in placed:
            if one.is_matrix:
                matrices[one.name] = form.matrix(one.kind, one.shape, _rows(one, reader, form, spec))
            else:
                rows = (piece.place(reader.read(piece), spec) for piece in one.pieces)
                vectors[one.name] = filled(one.shape, rows, parameter_dtype(one.kind, dtype), device)
        if spec.tied:
            matrices["head"] = form.tied_head(matrices["embedding"])
    except torch.OutOfMemoryError:
        needed = dense_bytes(weight_map, spec, dtype, device) / 2**30
        raise OutOfMemory(
            f"weights of {spec.name} take {needed:.1f} GiB as {str(dtype).removeprefix('torch.')}, more than is free "
            f"on {device}",
            param="model",
        ) from None
    return Weights(matrices, vectors)


def dense_bytes(weight_map: WeightMap, spec: ModelSpec, dtype: torch.dtype, device: torch.device) -> int:
    """Of all parameters as tensors of `dtype`, before anything is read."""
    return DenseForm(dtype, device).num_bytes(placements(weight_map.parameters, "hf", spec), spec.tied)


def packed_bytes(weight_map: WeightMap, source: Source, spec: ModelSpec, packing: Packing) -> int:
    """Of all matrices and tables once packed, before anything is read."""
    placed = list(placements(weight_map.parameters, source.format, spec))
    reader, form = Reader(source, placed, weight_map, spec), PackedForm(packing, Arena())
    pieces = [piece for one in placed if one.is_matrix for piece in one.pieces]
    stored = [reader.stored_type(piece) for piece in pieces]
    if packing.quantize and all(kind in FORMATS for kind in stored):
        raise InvalidSetting(
            f"quantize: the weights of {spec.name} are quantized already, to {', '.join(sorted(set(stored)))}",
            param="quantize",
        )
    return sum(form.piece_bytes(kind, piece.shape) for kind, piece in zip(stored, pieces, strict=True))


def _rows(placement: Placement, reader: Reader, form: DeviceForm, spec: ModelSpec) -> Iterator[Rows]:
    for piece in placement.pieces:
        blocks = form.reads_blocks(reader.stored_type(piece))
        yield piece.place(reader.read_blocks(piece) if blocks else reader.read(piece), spec)
