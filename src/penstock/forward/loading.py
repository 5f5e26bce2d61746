"""Weights and cache size of a backend under construction."""

from __future__ import annotations

from penstock.forward.backend import BackendConfig
from penstock.forward.memory import CacheSize, check_weights, size_cache
from penstock.model import Decoder, DummySource, Packing, load, open_source, packed_bytes, weight_bytes


def load_model(config: BackendConfig, packing: Packing | None = None) -> Decoder:
    """`packing`: how the native kernels store matrices; None: in the model's dtype."""
    settings, files, spec, device, dtype = config.settings, config.files, config.spec, config.device, config.dtype
    dummy = settings.model.load_format == "dummy"
    source = DummySource(device) if dummy else open_source(files.weights, files.format)
    needed = packed_bytes(spec, source, packing) if packing else weight_bytes(spec, dtype=dtype, device=device)
    check_weights(needed, settings.cache, device)
    return load(spec, source, dtype=dtype, device=device, context=config.context, packing=packing)


def choose_cache_size(config: BackendConfig) -> CacheSize:
    """Call it once the weights are in memory."""
    return size_cache(
        config.spec,
        config.settings.cache,
        dtype=config.kv_dtype,
        device=config.device,
        context=config.settings.model.context,
        max_sequences=config.limits.max_sequences,
        step_tokens=config.limits.step_tokens,
    )
