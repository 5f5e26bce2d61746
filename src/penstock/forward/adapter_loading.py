"""Adapters from their files to the matrices that a backend keeps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from penstock.errors import AdapterLoadFailed
from penstock.flow import Adapter
from penstock.kernels.low_rank import PRODUCTS, DeltaMatrices, LowRank
from penstock.model.weights.adapter import read_adapter
from penstock.store.adapter import check_adapter, open_adapter
from penstock.store.spec import ModelSpec

PANEL = 16  # ranks, in the packed form


def read_deltas(adapter: Adapter, spec: ModelSpec, *, halves: bool = False) -> Iterator[DeltaMatrices]:
    """Product by product; `halves` as in `read_adapter`. Raises a PenstockError that says what is wrong with the
    files."""
    files = open_adapter(Path(adapter.path))
    if files.spec.version != adapter.version:
        raise AdapterLoadFailed(
            f"adapter {adapter.name} has changed on disk: its version is {files.spec.version}, not {adapter.version}; "
            "add it again",
            param="model",
        )
    check_adapter(files.spec, spec)
    places, widths = _places(), _widths(spec)
    for delta in read_adapter(files, spec, halves=halves):
        if delta.layer is None:
            raise AdapterLoadFailed(
                f"adapter {adapter.name} changes the {delta.projection}: only projections of layers are supported",
                param="model",
            )
        product, part = places[delta.projection]
        offset = sum(widths[before] for before in PRODUCTS[product][:part])
        yield DeltaMatrices(LowRank(delta.layer, product), part, offset, delta.a, delta.b, delta.scale)


def most_bytes(adapter: Adapter, spec: ModelSpec, itemsize: int) -> int:
    """What the adapter takes at most, with all projections at its largest rank."""
    q, ffn, hidden = spec.num_heads * spec.head_dim, spec.intermediate_size, spec.hidden_size
    inputs = {"qkv": hidden, "output": q, "gate_up": hidden, "down": ffn}
    widths, ranks = _widths(spec), -(-adapter.rank // PANEL) * PANEL
    numbers = sum(
        ranks * inputs[product] + adapter.rank * -(-widths[one] // PANEL) * PANEL
        for product, projections in PRODUCTS.items()
        for one in projections
    )
    return numbers * itemsize * spec.num_layers


def _places() -> dict[str, tuple[str, int]]:
    """Projection -> its product, and which part of it."""
    return {one: (product, part) for product, projections in PRODUCTS.items() for part, one in enumerate(projections)}


def _widths(spec: ModelSpec) -> dict[str, int]:
    """Outputs of each projection."""
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    ffn, hidden = spec.intermediate_size, spec.hidden_size
    return {"q": q, "k": kv, "v": kv, "o": hidden, "gate": ffn, "up": ffn, "down": hidden}
