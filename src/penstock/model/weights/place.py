"""Second stage of loading, place: which rows and columns of which checkpoint tensors make up a parameter.

Checkpoint tensors are sliced (for one rank of several), permuted, and fused in the order of their parts. Under tensor
parallelism attention is split by heads and the MLP by its inner dimension: the rows of qkv and gate_up and the columns
of output and down. Each rank's products with the latter are partial sums. Where there are fewer KV heads than ranks,
several ranks have the same one. Embedding table and head are split by tokens. Norms, and the biases of partial sums,
are whole on every rank.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from penstock.kernels.interface import as_array, as_tensor
from penstock.model.weights.codes import CodedPiece, Layout
from penstock.model.weights.map import SECTIONS, Extent, Format, Kind, Parameter, Transform, extents
from penstock.model.weights.source import Region, Rows, Shape, Span
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from penstock.model.weights.unpack_codes import Codes


class Shard(NamedTuple):
    """Which of `world` ranks the parameters are for."""

    rank: int = 0
    world: int = 1

    def tokens(self, vocab_size: int) -> Span:
        """Of which it has the rows of embedding table and head."""
        return Span(vocab_size * self.rank // self.world, vocab_size * (self.rank + 1) // self.world)


WHOLE = Shard()


def vocabulary_parts(vocab_size: int, world: int) -> list[Span]:
    """Of each rank."""
    return [Shard(rank, world).tokens(vocab_size) for rank in range(world)]


@dataclass(frozen=True, slots=True)
class Piece:
    """A tensor of the checkpoint, and what of it goes into one parameter."""

    name: str  # as the weight map spells it
    stored_shape: Shape  # of all of it
    region: Region
    transform: Transform | None

    @property
    def shape(self) -> Shape:
        return self.region.shape

    def place(self, read: Rows, spec: ModelSpec) -> Rows:
        """Permute; of quantized blocks, slice too: columns can be cut between blocks. Floats are read as slices."""
        placed = read
        if read.is_blocks:
            rows, columns = self.region
            assert columns is not None
            placed = read._replace(data=Region(rows, None).of(read.data)).cut_columns(*columns)
        if self.transform is not None:
            placed = placed._replace(data=self.transform(placed.data, spec))
        return placed

    def place_codes(self, read: Codes, spec: ModelSpec) -> Codes:
        """Permute the rows, cut the columns out."""
        assert self.region.columns is not None
        change = self.transform
        permuted = read if change is None else read.map_rows(lambda rows: as_tensor(change(as_array(rows), spec)))
        columns = self.region.columns
        return permuted if columns == (0, self.stored_shape[1]) else permuted.cut_columns(columns)

    def coded(self, layout: Layout | None) -> CodedPiece | None:
        """What goes into the parameter, of codes with this layout; None: it must be read as floats."""
        columns = self.region.columns
        assert columns is not None
        cut = None if layout is None else layout.cut(self.stored_shape[1], columns)
        return None if cut is None else CodedPiece(self.shape[0], self.shape[1], cut)


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
        return self.kind in ("matrix", "head", "table")


def placements(
    parameters: Collection[Parameter], form: Format, spec: ModelSpec, shard: Shard = WHOLE
) -> Iterator[Placement]:
    sizes = extents(spec)
    for parameter in parameters:
        if not parameter.exists(spec):
            continue
        columns = None if parameter.columns is None else spans(parameter.columns, spec, shard)[0]
        width = () if parameter.columns is None else (sizes[parameter.columns],)
        for layer in range(spec.num_layers if "{layer}" in parameter.name else 1):
            pieces = tuple(
                Piece(
                    part.name(form).format(layer=layer),
                    (sizes[part.rows], *width),
                    Region(spans(part.rows, spec, shard), columns),
                    part.transform(form),
                )
                for part in parameter.parts
            )
            yield Placement(parameter.name.format(layer=layer), parameter.kind, pieces)


def spans(extent: Extent, spec: ModelSpec, shard: Shard) -> tuple[Span, ...]:
    """What a rank has of an extent: a share of each of its sections, or all of it."""
    sizes = extents(spec)
    if shard.world == 1:
        return (Span(0, sizes[extent]),)
    found, start = [], 0
    for section in SECTIONS.get(extent, (extent,)):
        begin, end = _share(section, spec, shard)
        found.append(Span(start + begin, start + end))
        start += sizes[section]
    return tuple(found)


def _share(section: Extent, spec: ModelSpec, shard: Shard) -> Span:
    """The caller has checked the degree: `store.tensor_parallel`."""
    rank, world = shard
    match section:
        case "vocab":
            return shard.tokens(spec.vocab_size)
        case "q":
            units, width = spec.num_heads, spec.head_dim
        case "kv":
            copies = max(1, world // spec.num_kv_heads)  # ranks with the same head
            rank, world, units, width = rank // copies, world // copies, spec.num_kv_heads, spec.head_dim
        case "ffn":
            units, width = spec.intermediate_size, 1
        case _:
            return Span(0, extents(spec)[section])
    if units % world:
        raise ValueError(f"{units} ({section}) cannot be divided among {shard.world} ranks")
    share = units // world * width
    return Span(rank * share, (rank + 1) * share)
