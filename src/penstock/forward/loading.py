"""Packed weights and cache size of a backend under construction."""

from __future__ import annotations

from penstock.forward.backend import BackendConfig
from penstock.forward.memory import CacheSize, DeviceMemory, check_weights, host_memory, size_cache
from penstock.model import Decoder, DummySource, PackedForm, Source, load, open_source, packed_bytes
from penstock.store.tensor_parallel import rank_spec


def load_packed_model(config: BackendConfig) -> Decoder:
    """For the native kernels."""
    settings, files, spec = config.settings, config.files, config.spec
    dummy = settings.model.load_format == "dummy"
    source: Source = DummySource() if dummy else open_source(files.weights, files.format, spec.quantization)
    assert settings.model.quantize != "fp8"  # `startup.decide` refuses it
    form = PackedForm(settings.model.quantize)
    check_weights(packed_bytes(spec, source, form), settings.cache, host_memory())
    return load(spec, source, form, context=config.context, threads=config.threads)


def choose_cache_size(config: BackendConfig, memory: DeviceMemory) -> CacheSize:
    """Call it once the weights are in memory."""
    return size_cache(
        rank_spec(config.spec, config.shard.world),
        config.settings.cache,
        types=config.kv_types,
        memory=memory,
        context=config.settings.model.context,
        max_sequences=config.limits.max_sequences,
        step_tokens=config.limits.step_tokens,
        drafting=None if config.drafts is None else config.drafts.layers,
    )
