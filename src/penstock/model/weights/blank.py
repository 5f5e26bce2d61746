"""Blank weights in the layouts of a quantized checkpoint: a few layers that stand for all of them, since files mix
formats by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import NamedTuple

from penstock.model.weights.codes import Layout
from penstock.model.weights.map import Format, WeightMap
from penstock.model.weights.place import Placement, placements
from penstock.model.weights.read import Reader
from penstock.model.weights.source import Source
from penstock.store.spec import ModelSpec


class StoredLayout(NamedTuple):
    cols: int
    layout: Layout


class BlankLayers(NamedTuple):
    """Layouts of a model with fewer layers."""

    num_layers: int
    format: Format
    layouts: Mapping[str, StoredLayout]  # by the name of a tensor, as the weight map spells it; floats have none


def layers_like(weight_map: WeightMap, source: Source, spec: ModelSpec, least: int) -> BlankLayers:
    """At least `least` layers, if the model has so many; one more than there are kinds of layers, since the last layer
    computes only the tokens that are read behind it."""
    placed = [one for one in placements(weight_map.parameters, source.format, spec) if one.is_matrix]
    reader = Reader(source, list(placements(weight_map.parameters, source.format, spec)), weight_map, spec)
    layers: dict[str, list[Placement]] = defaultdict(list)  # by the number in the name; "": of no layer
    for one in placed:
        layers[_number(one.name)].append(one)
    outside = layers.pop("", [])
    kinds = {tuple(_layouts(some, reader)): some for some in layers.values()}
    models = list(kinds.values())
    count = min(spec.num_layers, max(least, len(models) + 1))
    layouts = {}
    for real, model in [(outside, outside), *((layers[str(n)], models[n % len(models)]) for n in range(count))]:
        for one, like in zip(real, model, strict=True):
            for piece, other in zip(one.pieces, like.pieces, strict=True):
                if (layout := reader.layout(other)) is not None:
                    layouts[piece.name] = StoredLayout(piece.stored_shape[1], layout)
    return BlankLayers(count, source.format, layouts)


def _number(name: str) -> str:
    return name.split(".")[1] if name.startswith("layers.") else ""


def _layouts(placed: list[Placement], reader: Reader) -> list[Layout | None]:
    """An order does not matter: any is like it."""
    found = [reader.layout(piece) for one in placed for piece in one.pieces]
    return [layout and layout._replace(order=min(abs(layout.order), 1)) for layout in found]
