"""Adapters for the native kernels."""

from __future__ import annotations

from penstock.adapters import AdapterCache, AdapterLoader
from penstock.flow import Adapter
from penstock.forward.adapter_loading import most_bytes, read_deltas
from penstock.kernels.cpu.low_rank import PackedAdapter
from penstock.store.spec import ModelSpec

ITEMSIZE = 2  # of a float16

NativeAdapters = AdapterCache[PackedAdapter]


def native_adapters(spec: ModelSpec, capacity: int) -> NativeAdapters:
    """`capacity` in bytes."""

    def load(adapter: Adapter) -> PackedAdapter:
        return PackedAdapter(read_deltas(adapter, spec, halves=True), spec.num_layers)

    return AdapterCache(AdapterLoader(load), lambda adapter: most_bytes(adapter, spec, ITEMSIZE), capacity)
