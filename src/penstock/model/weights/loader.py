"""A model's parameters from a source, in three stages: read (`read`), place (`place`), form (`form`).

checkpoint ──Reader──► Rows ──Piece.place──► Rows of this rank ──DeviceForm──► Weight
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import prod
from typing import TYPE_CHECKING, Protocol, cast

from penstock.errors import InvalidSetting
from penstock.kernels.arrays import ITEMSIZES, Dtype
from penstock.kernels.weight import Weight
from penstock.model.weights.codes import CodedPiece
from penstock.model.weights.form import DeviceForm, PackedForm
from penstock.model.weights.loaded import Weights
from penstock.model.weights.map import Kind, WeightMap
from penstock.model.weights.pack import FORMATS
from penstock.model.weights.place import WHOLE, Placement, Shard, placements
from penstock.model.weights.read import Reader
from penstock.model.weights.source import Rows, Shape, Source
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.model.weights.unpack_codes import Codes


def load(
    weight_map: WeightMap,
    source: Source,
    spec: ModelSpec,
    form: DeviceForm,
    shard: Shard = WHOLE,
    *,
    threads: int = 1,
) -> Weights:
    """`threads` read, place and form different parameters at the same time."""
    placed = list(placements(weight_map.parameters, source.format, spec, shard))
    reader = Reader(source, placed, weight_map, spec)

    def make(one: Placement) -> Weight | Tensor:
        if not one.is_matrix:
            return form.vector(one.kind, one.shape, _rows(one, reader, form, spec))
        pieces = _coded_pieces(one, reader)
        if form.keeps_codes(one.kind, pieces):
            return form.coded([piece for piece in pieces if piece], _codes(one, reader, form, spec))
        return form.matrix(one.kind, one.shape, _rows(one, reader, form, spec))

    if threads == 1:
        made = [make(one) for one in placed]
    else:
        with ThreadPoolExecutor(threads) as pool:
            made = list(pool.map(make, placed))
    matrices = {one.name: cast(Weight, made[place]) for place, one in enumerate(placed) if one.is_matrix}
    vectors = {one.name: cast("Tensor", made[place]) for place, one in enumerate(placed) if not one.is_matrix}
    if spec.tied:
        matrices["head"] = form.tied_head(matrices["embedding"])
    return Weights(matrices, vectors)


def parameter_bytes(weight_map: WeightMap, spec: ModelSpec, dtype: Dtype, shard: Shard = WHOLE) -> int:
    """Of all parameters as tensors of `dtype`; norms are float32."""
    return sum(
        prod(one.shape) * ITEMSIZES["float32" if one.kind == "norm" else dtype]
        for one in placements(weight_map.parameters, "hf", spec, shard)
    )


class CountingForm(Protocol):
    """`coded_form.CodedForm`, which needs torch"""

    @property
    def quantize(self) -> str | None: ...

    def keeps_codes(self, kind: Kind, pieces: Sequence[CodedPiece | None]) -> bool: ...

    def coded_bytes(self, pieces: Sequence[CodedPiece]) -> int: ...

    def parameter_bytes(self, kind: Kind, shape: Shape) -> int: ...


def coded_bytes(
    weight_map: WeightMap, source: Source, spec: ModelSpec, form: CountingForm, shard: Shard = WHOLE
) -> int:
    """Of all parameters as `form` will make them, before anything is read."""
    placed = list(placements(weight_map.parameters, source.format, spec, shard))
    reader = Reader(source, placed, weight_map, spec)
    total, matrices = 0, Counter[bool]()
    for one in placed:
        pieces = _coded_pieces(one, reader) if one.is_matrix else []
        coded = one.is_matrix and form.keeps_codes(one.kind, pieces)
        known = [piece for piece in pieces if piece]
        total += form.coded_bytes(known) if coded else form.parameter_bytes(one.kind, one.shape)
        matrices[coded] += one.kind == "matrix"
    if form.quantize and not matrices[False]:
        raise InvalidSetting(f"quantize: the weights of {spec.name} are quantized already", param="quantize")
    return total


def dequantized(
    weight_map: WeightMap, source: Source, spec: ModelSpec, form: CountingForm, shard: Shard = WHOLE
) -> list[str]:
    """Names of matrices that a checkpoint has codes of, and `form` keeps as floats."""
    placed = list(placements(weight_map.parameters, source.format, spec, shard))
    reader = Reader(source, placed, weight_map, spec)
    return [
        one.name
        for one in placed
        if one.kind in ("matrix", "head")
        and any(reader.layout(piece) for piece in one.pieces)
        and not form.keeps_codes(one.kind, _coded_pieces(one, reader))
    ]


def packed_bytes(weight_map: WeightMap, source: Source, spec: ModelSpec, form: PackedForm) -> int:
    """Of all matrices and tables once packed, before anything is read."""
    placed = list(placements(weight_map.parameters, source.format, spec))
    reader = Reader(source, placed, weight_map, spec)
    pieces = [piece for one in placed if one.is_matrix for piece in one.pieces]
    stored = [reader.stored_type(piece) for piece in pieces]
    if form.quantize and all(kind in FORMATS for kind in stored):
        raise InvalidSetting(
            f"quantize: the weights of {spec.name} are quantized already, to {', '.join(sorted(set(stored)))}",
            param="quantize",
        )
    return sum(form.piece_bytes(kind, piece.shape) for kind, piece in zip(stored, pieces, strict=True))


def _coded_pieces(placement: Placement, reader: Reader) -> list[CodedPiece | None]:
    return [piece.coded(reader.layout(piece)) for piece in placement.pieces]


def _codes(placement: Placement, reader: Reader, form: DeviceForm, spec: ModelSpec) -> Iterator[Codes]:
    for piece in placement.pieces:
        yield piece.place_codes(form.unpacked(reader.read_codes(piece)), spec)
        reader.release(piece)


def _rows(placement: Placement, reader: Reader, form: DeviceForm, spec: ModelSpec) -> Iterator[Rows]:
    for piece in placement.pieces:
        blocks = placement.is_matrix and form.reads_blocks(reader.stored_type(piece))
        yield piece.place(reader.read_blocks(piece) if blocks else reader.read(piece), spec)
        reader.release(piece)
