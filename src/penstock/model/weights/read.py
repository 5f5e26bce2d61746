"""First stage of loading, read: the tensors that a model's parameters are placed from, by the names a checkpoint has
for them. Map and checkpoint must fit: nothing missing, nothing left over."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from penstock.errors import WeightsMismatch
from penstock.model.weights.codes import Layout, StoredRows
from penstock.model.weights.map import WeightMap
from penstock.model.weights.place import Piece, Placement
from penstock.model.weights.source import Rows, Source
from penstock.store.spec import ModelSpec

NAMED_AT_MOST = 5  # tensors in an error message

# Saved by some tools, not needed by us, in checkpoints of any family
IGNORED = (r".*rotary_emb\.inv_freq", r"rope_freqs\.weight", r"rope_factors_(long|short)\.weight")
IGNORED_IF_TIED = (r"lm_head\.weight", r"output\.weight")


class Reader:
    """Raises `WeightsMismatch` unless the source has the tensors of all placements, and no others."""

    def __init__(
        self, source: Source, placements: Collection[Placement], weight_map: WeightMap, spec: ModelSpec
    ) -> None:
        self._source = source
        self._names = _checkpoint_names(placements, weight_map, source, spec)

    def stored_type(self, piece: Piece) -> str:
        """The type it has in the checkpoint: "F32", "Q4_0"."""
        return self._source.stored_type(self._names[piece.name])

    def read(self, piece: Piece) -> Rows:
        """What the parameter has of it, as floats."""
        name, shape, region = self._names[piece.name], piece.stored_shape, piece.region
        values = self._source.read(name, shape, None if region.shape == shape else region)
        return Rows(values, self._source.stored_type(name), region.shape[-1], name=name)

    def read_blocks(self, piece: Piece) -> Rows:
        """All of it, as the blocks of the quantized type it is stored in."""
        name, shape = self._names[piece.name], piece.stored_shape
        blocks, stored = self._source.read_blocks(name, shape), self._source.stored_type(name)
        return Rows(blocks, stored, shape[-1], is_blocks=True, name=name)

    def layout(self, piece: Piece) -> Layout | None:
        """Of the codes of all of it; None: it is read as floats."""
        stored = self._source.codes(self._names[piece.name])
        return None if stored is None else stored.layout

    def read_codes(self, piece: Piece) -> list[StoredRows]:
        """Its rows, with all columns."""
        stored = self._source.codes(self._names[piece.name])
        assert stored is not None
        return [stored.read(rows) for rows in piece.region.rows]

    def release(self, piece: Piece) -> None:
        """What was read of it is not needed any more."""
        self._source.release(self._names[piece.name])


def _checkpoint_names(
    placements: Collection[Placement], weight_map: WeightMap, source: Source, spec: ModelSpec
) -> Mapping[str, str]:
    """Names as the map spells them -> as the checkpoint does."""
    required = {piece.name: piece.stored_shape for placement in placements for piece in placement.pieces}
    if source.shapes is None:
        return {name: name for name in required}
    names = {_rename(name, weight_map.renamed): name for name in source.shapes}
    ignored = re.compile("|".join(IGNORED + weight_map.ignored + (IGNORED_IF_TIED if spec.tied else ())))
    if missing := [name for name in required if name not in names]:
        raise WeightsMismatch(f"weights of {spec.name} lack {_some(missing)}", param="model")
    if surplus := [name for name in names if name not in required and not ignored.fullmatch(name)]:
        raise WeightsMismatch(
            f"weights of {spec.name} have tensors that a {spec.architecture} model does not use: {_some(surplus)}",
            param="model",
        )
    for name, shape in required.items():
        stored = source.shapes[names[name]]
        if stored != shape:
            raise WeightsMismatch(
                f"weights of {spec.name}: tensor {names[name]} has shape {stored}, its config asks for {shape}",
                param="model",
            )
    return names


def _rename(name: str, prefixes: Collection[tuple[str, str]]) -> str:
    for prefix, other in prefixes:
        if name.startswith(prefix):
            return other + name.removeprefix(prefix)
    return name


def _some(names: list[str]) -> str:
    more = len(names) - NAMED_AT_MOST
    return ", ".join(names[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
