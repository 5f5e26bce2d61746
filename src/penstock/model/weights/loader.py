"""Fills a model's parameters from a source, and insists that the two fit: nothing missing, nothing left over."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from penstock.errors import InvalidSetting, OutOfMemory, WeightsMismatch
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import PackedMatrix, segment_bytes
from penstock.kernels.reference import linear
from penstock.model.weights.map import Format, Kind, Parameter, Transform, WeightMap, Weights, extents
from penstock.model.weights.pack import FORMATS, Quantization, kind_of, pack_blocks, pack_floats, pack_quantized
from penstock.model.weights.source import Shape, Source
from penstock.store.spec import ModelSpec

NAMED_AT_MOST = 5  # tensors in an error message

# Saved by some tools, not needed by us, in checkpoints of any family
IGNORED = (r".*rotary_emb\.inv_freq", r"rope_freqs\.weight", r"rope_factors_(long|short)\.weight")
IGNORED_IF_TIED = (r"lm_head\.weight", r"output\.weight")


@dataclass(frozen=True, slots=True)
class Packing:
    """How matrices become packed ones."""

    quantize: Quantization | None = None  # what to make of matrices that are stored as floats; None: keep them


@dataclass(frozen=True, slots=True)
class _Piece:
    """A tensor of the checkpoint that goes into one parameter."""

    name: str
    shape: Shape
    transform: Transform | None


@dataclass(frozen=True, slots=True)
class _Target:
    """One parameter, of one layer if it has one per layer."""

    name: str
    kind: Kind
    pieces: tuple[_Piece, ...]

    @property
    def shape(self) -> Shape:
        return (sum(piece.shape[0] for piece in self.pieces), *self.pieces[0].shape[1:])

    @property
    def is_matrix(self) -> bool:
        return self.kind in ("matrix", "table")

    def dtype(self, chosen: torch.dtype) -> torch.dtype:
        return torch.float32 if self.kind == "norm" else chosen


def load(
    weight_map: WeightMap,
    source: Source,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
    packing: Packing | None = None,
) -> Weights:
    """`packing`: matrices and tables in the native kernels' form, and how; None: as tensors of `dtype`."""
    targets = list(_targets(weight_map.parameters, source.format, spec))
    names = _checkpoint_names(targets, weight_map, source, spec)
    packed: dict[str, PackedMatrix] = {}
    plain: dict[str, Tensor] = {}
    arena = Arena()
    try:
        for target in targets:
            if packing is not None and target.is_matrix:
                packed[target.name] = _pack(target, names, source, spec, packing, arena)
            else:
                plain[target.name] = _fill(target, names, source, spec, dtype=dtype, device=device)
    except torch.OutOfMemoryError:
        needed = num_bytes(weight_map, spec, dtype) / 2**30
        raise OutOfMemory(
            f"weights of {spec.name} take {needed:.1f} GiB as {str(dtype).removeprefix('torch.')}, more than is free "
            f"on {device}",
            param="model",
        ) from None
    return Weights(plain, packed)


def num_bytes(weight_map: WeightMap, spec: ModelSpec, dtype: torch.dtype) -> int:
    """Of all parameters, before anything is read."""
    targets = _targets(weight_map.parameters, "hf", spec)
    return sum(prod(target.shape) * target.dtype(dtype).itemsize for target in targets)


def packed_bytes(weight_map: WeightMap, source: Source, spec: ModelSpec, packing: Packing) -> int:
    """Of all matrices and tables once packed, before anything is read."""
    targets = list(_targets(weight_map.parameters, source.format, spec))
    names = _checkpoint_names(targets, weight_map, source, spec)
    pieces = [piece for target in targets if target.is_matrix for piece in target.pieces]
    stored = [source.stored(names[piece.name]) for piece in pieces]
    if packing.quantize and all(kind in FORMATS for kind in stored):
        raise InvalidSetting(
            f"quantize: the weights of {spec.name} are quantized already, to {', '.join(sorted(set(stored)))}",
            param="quantize",
        )
    kinds = [kind_of(kind, packing.quantize) for kind in stored]
    return sum(segment_bytes(kind, *piece.shape) for kind, piece in zip(kinds, pieces, strict=True))


def _targets(parameters: Collection[Parameter], form: Format, spec: ModelSpec) -> Iterator[_Target]:
    sizes = extents(spec)
    for parameter in parameters:
        if not parameter.exists(spec):
            continue
        columns = () if parameter.columns is None else (sizes[parameter.columns],)
        for layer in range(spec.num_layers if "{layer}" in parameter.name else 1):
            pieces = tuple(
                _Piece(part.name(form).format(layer=layer), (sizes[part.rows], *columns), part.transform(form))
                for part in parameter.parts
            )
            yield _Target(parameter.name.format(layer=layer), parameter.kind, pieces)


def _checkpoint_names(
    targets: list[_Target], weight_map: WeightMap, source: Source, spec: ModelSpec
) -> Mapping[str, str]:
    """Names as the map spells them -> as the checkpoint does. Fails unless they are the same tensors."""
    wanted = {piece.name: piece.shape for target in targets for piece in target.pieces}
    if source.shapes is None:
        return {name: name for name in wanted}
    names = {_renamed(name, weight_map.renamed): name for name in source.shapes}
    ignored = re.compile("|".join(IGNORED + weight_map.ignored + (IGNORED_IF_TIED if spec.tied else ())))
    if missing := [name for name in wanted if name not in names]:
        raise WeightsMismatch(f"weights of {spec.name} lack {_some(missing)}", param="model")
    if surplus := [name for name in names if name not in wanted and not ignored.fullmatch(name)]:
        raise WeightsMismatch(
            f"weights of {spec.name} have tensors that a {spec.architecture} model has no use for: {_some(surplus)}",
            param="model",
        )
    for name, shape in wanted.items():
        found = source.shapes[names[name]]
        if found != shape:
            raise WeightsMismatch(
                f"weights of {spec.name}: tensor {names[name]} has shape {found}, its config asks for {shape}",
                param="model",
            )
    return names


def _renamed(name: str, prefixes: Collection[tuple[str, str]]) -> str:
    for prefix, other in prefixes:
        if name.startswith(prefix):
            return other + name.removeprefix(prefix)
    return name


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _fill(
    target: _Target,
    names: Mapping[str, str],
    source: Source,
    spec: ModelSpec,
    *,
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    filled = torch.empty(target.shape, dtype=target.dtype(dtype), device=device)
    begin = 0
    for piece in target.pieces:
        tensor = source.read(names[piece.name], piece.shape)
        filled[begin : begin + piece.shape[0]] = tensor if piece.transform is None else piece.transform(tensor, spec)
        begin += piece.shape[0]
    return linear.pack(filled) if target.kind == "matrix" else filled


def _pack(
    target: _Target, names: Mapping[str, str], source: Source, spec: ModelSpec, packing: Packing, arena: Arena
) -> PackedMatrix:
    segments = []
    for piece in target.pieces:
        name = names[piece.name]
        stored = source.stored(name)
        rows = source.read_blocks(name) if stored in FORMATS else source.read(name, piece.shape)
        if piece.transform is not None:
            rows = piece.transform(rows, spec)  # of a matrix: an order of its rows, whatever they are made of
        if stored in FORMATS:
            segments.append(pack_blocks(stored, rows, piece.shape[1], arena))
        elif packing.quantize is not None:
            segments.append(pack_quantized(rows, packing.quantize, arena))
        else:
            segments.append(pack_floats(rows, arena))
    return PackedMatrix(segments, target.shape[1])
