"""Adapters as torch tensors."""

from __future__ import annotations

import torch

from penstock.adapters import AdapterCache, AdapterLoader
from penstock.flow import Adapter
from penstock.forward.adapter_loading import read_deltas
from penstock.kernels.low_rank import LowRank
from penstock.kernels.reference.low_rank import Part
from penstock.model.weights.place import WHOLE, Shard
from penstock.store.spec import ModelSpec


class TorchAdapter:
    def __init__(self, adapter: Adapter, spec: ModelSpec, dtype: torch.dtype, shard: Shard = WHOLE) -> None:
        self.parts: dict[LowRank, list[Part]] = {}
        self.num_bytes = 0
        for product, _, offset, a, b, scale in read_deltas(adapter, spec, shard=shard):
            part = Part(torch.from_numpy(a).to(dtype), (torch.from_numpy(b) * scale).to(dtype), offset)
            self.num_bytes += part.a.nbytes + part.b.nbytes
            self.parts.setdefault(product, []).append(part)


TorchAdapters = AdapterCache[TorchAdapter]


def torch_loader(spec: ModelSpec, dtype: torch.dtype, shard: Shard) -> AdapterLoader[TorchAdapter]:
    return AdapterLoader(lambda adapter: TorchAdapter(adapter, spec, dtype, shard))
