"""Adapters for the native kernels."""

from __future__ import annotations

from penstock.adapters import AdapterCache, AdapterLoader
from penstock.flow import Adapter
from penstock.forward.adapter_loading import most_bytes, read_deltas
from penstock.kernels.cpu.low_rank import PackedAdapter, panel_bytes
from penstock.store.spec import ModelSpec

HALF_BYTES = 2

NativeAdapters = AdapterCache[PackedAdapter]


def native_adapters(spec: ModelSpec, capacity: int, *, codes: bool) -> NativeAdapters:
    """`capacity` in bytes. `codes`: they are packed in 8 bits, as on a base that has codes itself."""

    def load(adapter: Adapter) -> PackedAdapter:
        return PackedAdapter(read_deltas(adapter, spec, halves=True), spec.num_layers, codes=codes)

    def most(adapter: Adapter) -> int:
        return most_bytes(adapter, spec, HALF_BYTES, panel_bytes if codes else None)

    return AdapterCache(AdapterLoader(load), most, capacity)
