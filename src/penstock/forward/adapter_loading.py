"""Adapters from their files to the matrices that a backend keeps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec.structs import replace

from penstock.errors import AdapterLoadFailed
from penstock.flow import Adapter
from penstock.kernels.low_rank import PRODUCTS, TABLES, DeltaMatrices, LowRank
from penstock.model.weights.adapter import read_adapter
from penstock.model.weights.place import WHOLE, Shard
from penstock.store.adapter import check_adapter, open_adapter
from penstock.store.spec import ModelSpec
from penstock.store.tensor_parallel import rank_spec

PANEL = 16  # ranks, in the packed form


def read_deltas(
    adapter: Adapter, spec: ModelSpec, *, halves: bool = False, shard: Shard = WHOLE
) -> Iterator[DeltaMatrices]:
    """Product by product; `halves` and `shard` as in `read_adapter`. Raises a PenstockError that says what is wrong
    with the files."""
    files = open_adapter(Path(adapter.path))
    if files.spec.version != adapter.version:
        raise AdapterLoadFailed(
            f"adapter {adapter.name} has changed on disk: its version is {files.spec.version}, not {adapter.version}; "
            "add it again",
            param="model",
        )
    check_adapter(files.spec, spec)
    places, widths = _places(), _widths(share_spec(spec, shard))
    for delta in read_adapter(files, spec, halves=halves, shard=shard):
        product, part = places[delta.projection]
        place = LowRank(delta.layer, product)
        offset = sum(widths[before] for before in place.projections[:part])
        yield DeltaMatrices(place, part, offset, delta.a, delta.b, delta.scale)


def share_spec(spec: ModelSpec, shard: Shard) -> ModelSpec:
    """What a rank computes of a model, its part of the vocabulary included."""
    begin, end = shard.tokens(spec.vocab_size)
    return replace(rank_spec(spec, shard.world), vocab_size=end - begin)


def most_bytes(
    adapter: Adapter, spec: ModelSpec, itemsize: int, panel_bytes: Callable[[int], int] | None = None
) -> int:
    """What the adapter takes at most, with all projections of the layers at its largest rank. `spec`: of one rank of
    several, its share. `panel_bytes`: of a panel of so many columns, in the layers."""
    q, ffn, hidden = spec.num_heads * spec.head_dim, spec.intermediate_size, spec.hidden_size
    inputs = {"qkv": hidden, "output": q, "gate_up": hidden, "down": ffn, "embed": spec.vocab_size, "head": hidden}
    widths = _widths(spec)

    def plain(cols: int) -> int:
        return PANEL * cols * itemsize

    def size(product: str, projection: str, panel: Callable[[int], int]) -> int:
        ranks, outputs = -(-adapter.rank // PANEL), -(-widths[projection] // PANEL)
        return ranks * panel(inputs[product]) + outputs * panel(adapter.rank)

    in_layers = panel_bytes or plain
    layer = sum(size(product, one, in_layers) for product, projections in PRODUCTS.items() for one in projections)
    return layer * spec.num_layers + sum(size(table, table, plain) for table in adapter.tables)


def _places() -> dict[str, tuple[str, int]]:
    """Projection -> its product, and which part of it."""
    products = PRODUCTS | {table: (table,) for table in TABLES}
    return {one: (product, part) for product, projections in products.items() for part, one in enumerate(projections)}


def _widths(spec: ModelSpec) -> dict[str, int]:
    """Outputs of each projection."""
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    ffn, hidden = spec.intermediate_size, spec.hidden_size
    layer = {"q": q, "k": kv, "v": kv, "o": hidden, "gate": ffn, "up": ffn, "down": hidden}
    return layer | {"embed": hidden, "head": spec.vocab_size}
