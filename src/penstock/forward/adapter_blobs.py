"""An adapter as `kernels.cuda.low_rank` reads it: the numbers of each layer, and of each table, in one piece (a blob),
and the entries that say where each matrix lies. Ranks are padded to whole UNITs, and no further."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from penstock.flow import Adapter
from penstock.kernels.arrays import Array
from penstock.kernels.low_rank import MOST_PARTS, PRODUCTS, TABLES, DeltaMatrices, LowRank, num_sites
from penstock.store.spec import ModelSpec

UNIT = 16  # ranks, and numbers of an offset
FIELDS = 4  # of an entry: where A and B begin in UNITs, units of ranks (0: no delta), scale as float32


class Blob(NamedTuple):
    number: int  # of its layer, or behind those the place of its table in TABLES
    numbers: Tensor  # [numbers] of the model's type


class PackedAdapter(NamedTuple):
    blobs: tuple[Blob, ...]
    entries: Array  # [sites * MOST_PARTS, FIELDS] int32; A and B begin within their blob
    blob_of: Array  # [sites * MOST_PARTS] which one that is
    tables: frozenset[str]  # of TABLES, that it changes

    @property
    def num_bytes(self) -> int:
        return sum(blob.numbers.nbytes for blob in self.blobs)

    def placed(self, begins: dict[int, int]) -> Array:
        """The entries with offsets of the whole memory; `begins`: where each blob lies, in UNITs."""
        where = np.array([begins.get(number, 0) for number in range(int(self.blob_of.max(initial=0)) + 1)])
        entries = self.entries.copy()
        entries[:, :2] += where[self.blob_of][:, None] * (entries[:, 2:3] > 0)
        return entries


def pack(
    deltas: Iterable[DeltaMatrices], num_layers: int, allocate: Callable[[int], Tensor], spare_tokens: int = 0
) -> PackedAdapter:
    """`deltas` layer by layer; `allocate` gives so many numbers, for a blob. `spare_tokens`: that another rank has more
    of the vocabulary: all ranks take as much memory."""
    entries = np.zeros((num_sites(num_layers) * MOST_PARTS, FIELDS), dtype=np.int32)
    blob_of, blobs, tables = np.zeros(len(entries), dtype=np.int64), [], set()
    for number, group in groupby(deltas, lambda one: _blob_number(one.product, num_layers)):
        found = list(group)
        spare = spare_tokens * UNIT * sum(-(-len(one.a) // UNIT) for one in found) if number >= num_layers else 0
        numbers, begin = allocate(sum(map(_size, found)) + spare), 0
        for one in found:
            units = -(-len(one.a) // UNIT)
            a, b = units * UNIT * one.a.shape[1], units * UNIT * len(one.b)
            if one.product.product == "embed":  # of a token it takes a column
                _write_units(numbers[begin : begin + a], one.a.T)
            else:
                _write_rows(numbers[begin : begin + a], one.a)
            _write_units(numbers[begin + a : begin + a + b], one.b)
            place = one.product.site * MOST_PARTS + one.part
            scale = int(np.float32(one.scale).view(np.int32))
            entries[place], blob_of[place] = (begin // UNIT, (begin + a) // UNIT, units, scale), number
            begin += a + b
            tables |= {one.product.product} & set(TABLES)
        blobs.append(Blob(number, numbers))
    return PackedAdapter(tuple(blobs), entries, blob_of, frozenset(tables))


def most_numbers(adapter: Adapter, spec: ModelSpec) -> dict[int, int]:
    """Blob -> the most numbers that it may have: all projections at the adapter's largest rank."""
    q, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, ffn = spec.hidden_size, spec.intermediate_size
    inputs = {"qkv": hidden, "output": q, "gate_up": hidden, "down": ffn}
    outputs = {"qkv": q + 2 * kv, "output": hidden, "gate_up": 2 * ffn, "down": hidden}
    ranks = -(-adapter.rank // UNIT) * UNIT
    layer = ranks * sum(len(parts) * inputs[product] + outputs[product] for product, parts in PRODUCTS.items())
    tables = {spec.num_layers + TABLES.index(one): ranks * (spec.vocab_size + hidden) for one in adapter.tables}
    return dict.fromkeys(range(spec.num_layers), layer) | tables


def _blob_number(product: LowRank, num_layers: int) -> int:
    return num_layers + TABLES.index(product.product) if product.layer is None else product.layer


def _size(one: DeltaMatrices) -> int:
    rank, inputs = one.a.shape
    return int(-(-rank // UNIT) * UNIT * (inputs + len(one.b)))


def _write_rows(target: Tensor, matrix: Array) -> None:
    """[ranks, width], the rest of the last unit zeros."""
    rows = target.view(-1, matrix.shape[1])
    rows[: len(matrix)].copy_(torch.from_numpy(matrix))
    rows[len(matrix) :] = 0


def _write_units(target: Tensor, matrix: Array) -> None:
    """[width, ranks] as [units, width, UNIT]."""
    units, source = target.view(-1, matrix.shape[0], UNIT), torch.from_numpy(matrix)
    for number, unit in enumerate(units):
        ranks = source[:, number * UNIT : (number + 1) * UNIT]
        unit[:, : ranks.shape[1]].copy_(ranks)
        unit[:, ranks.shape[1] :] = 0
