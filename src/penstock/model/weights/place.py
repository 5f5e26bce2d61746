"""Second stage of loading, place: which rows and columns of which checkpoint tensors make up a parameter.

Checkpoint tensors are sliced (for one rank of several), permuted, and fused in the order of their parts. Under tensor
parallelism attention is split by heads and the MLP by its inner dimension: the rows of qkv and gate_up and the columns
of output and down. Each rank's products with the latter are partial sums. All else is whole on every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from penstock.kernels.arrays import Array
from penstock.model.weights.map import SECTIONS, Extent, Format, Kind, Parameter, Transform, extents
from penstock.model.weights.source import Rows, Shape
from penstock.store.spec import ModelSpec


class Shard(NamedTuple):
    """Which of `world` ranks the parameters are for."""

    rank: int = 0
    world: int = 1


WHOLE = Shard()


class Span(NamedTuple):
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the checkpoint, and what of it goes into one parameter."""

    name: str  # as the weight map spells it
    stored_shape: Shape  # of all of it
    rows: tuple[Span, ...]
    columns: Span | None  # None: a vector
    transform: Transform | None

    @property
    def shape(self) -> Shape:
        rows = sum(end - begin for begin, end in self.rows)
        return (rows,) if self.columns is None else (rows, self.columns.end - self.columns.begin)

    def place(self, read: Rows, spec: ModelSpec) -> Rows:
        """Slice and permute. Of quantized blocks, rows can be permuted, and columns be cut between blocks."""
        placed = read._replace(data=_rows(read.data, self.rows))
        if self.columns is not None:
            placed = placed.cut_columns(*self.columns)
        if self.transform is not None:
            placed = placed._replace(data=self.transform(placed.data, spec))
        return placed


@dataclass(frozen=True, slots=True)
class Placement:
    """One parameter, of one layer if it has one per layer: its pieces one below the other."""

    name: str
    kind: Kind
    pieces: tuple[Piece, ...]

    @property
    def shape(self) -> Shape:
        return (sum(piece.shape[0] for piece in self.pieces), *self.pieces[0].shape[1:])

    @property
    def is_matrix(self) -> bool:
        return self.kind in ("matrix", "table")


def placements(
    parameters: Collection[Parameter], form: Format, spec: ModelSpec, shard: Shard = WHOLE
) -> Iterator[Placement]:
    sizes = extents(spec)
    for parameter in parameters:
        if not parameter.exists(spec):
            continue
        columns = None if parameter.columns is None else _spans(parameter.columns, spec, shard)[0]
        width = () if parameter.columns is None else (sizes[parameter.columns],)
        for layer in range(spec.num_layers if "{layer}" in parameter.name else 1):
            pieces = tuple(
                Piece(
                    part.name(form).format(layer=layer),
                    (sizes[part.rows], *width),
                    _spans(part.rows, spec, shard),
                    columns,
                    part.transform(form),
                )
                for part in parameter.parts
            )
            yield Placement(parameter.name.format(layer=layer), parameter.kind, pieces)


def _spans(extent: Extent, spec: ModelSpec, shard: Shard) -> tuple[Span, ...]:
    """What a rank has of an extent: a share of each of its sections, in whole heads, or all of it."""
    sizes = extents(spec)
    units = {"q": spec.num_heads, "kv": spec.num_kv_heads, "ffn": spec.intermediate_size}
    if shard.world == 1:
        return (Span(0, sizes[extent]),)
    spans, start = [], 0
    for section in SECTIONS.get(extent, (extent,)):
        size = sizes[section]
        begin, end = 0, size
        if section in units:
            if units[section] % shard.world:
                raise ValueError(f"{units[section]} ({section}) cannot be divided among {shard.world} ranks")
            share = size // shard.world
            begin, end = shard.rank * share, (shard.rank + 1) * share
        spans.append(Span(start + begin, start + end))
        start += size
    return tuple(spans)


def _rows(data: Array, spans: tuple[Span, ...]) -> Array:
    slices = [data[begin:end] for begin, end in spans]
    return slices[0] if len(slices) == 1 else np.concatenate(slices)
