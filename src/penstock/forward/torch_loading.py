"""Weights, memory and KV pages of a backend that computes with torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.forward.backend import BackendConfig
from penstock.forward.memory import CacheSize, DeviceMemory, allocation_error, check_weights, host_memory
from penstock.kernels.interface import Pages
from penstock.model import Decoder, DummySource, Source, open_source
from penstock.model.load_dense import TORCH_DTYPES, load_dense, weight_bytes
from penstock.model.weights.dense_form import Allocate
from penstock.model.weights.dummy_tensors import DeviceDummySource
from penstock.store.spec import ModelSpec


def load_model(config: BackendConfig, device: torch.device, allocate: Allocate | None = None) -> Decoder:
    spec, dtype, files = config.spec, TORCH_DTYPES[config.dtype], config.files
    source: Source
    if config.settings.model.load_format == "dummy":
        source = DummySource() if device.type == "cpu" else DeviceDummySource(device)
    else:
        source = open_source(files.weights, files.format, spec.quantization)
    shard = config.shard
    if shard.rank == 0 or device.type != "cpu":  # ranks on a CPU share its memory
        memory = device_memory(device) if device.type != "cpu" else host_memory(shard.world)
        check_weights(weight_bytes(spec, dtype=dtype, device=device, shard=shard), config.settings.cache, memory)
    dequantizes = source.format == "gguf" or spec.quantization is not None
    threads = config.threads if dequantizes else 1  # other formats are only copied
    return load_dense(
        spec,
        source,
        dtype=dtype,
        device=device,
        context=config.context,
        threads=threads,
        allocate=allocate,
        shard=shard,
    )


def device_memory(device: torch.device, weights_bytes: int = 0) -> DeviceMemory:
    """`weights_bytes`: this engine's, beside what it has of torch's allocator."""
    if device.type == "cpu":
        return host_memory()
    own = torch.cuda.memory_reserved(device) + weights_bytes
    return DeviceMemory(str(device), *torch.cuda.mem_get_info(device), own)


def allocate_pages(
    spec: ModelSpec, size: CacheSize, dtype: torch.dtype, device: torch.device, allocate: Allocate | None = None
) -> list[Pages]:
    """The KV pages of each layer, not initialised: on a CPU the system provides memory when a block is first
    written."""
    blocks = {
        layer: count for group, count in zip(spec.cache_groups, size.blocks, strict=True) for layer in group.layers
    }
    shape = (size.block_size, spec.num_kv_heads, spec.head_dim)

    def empty(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    allocate = allocate or empty
    try:
        return [
            Pages(*(allocate((blocks[layer], *shape), dtype) for _ in ("keys", "values")))
            for layer in range(spec.num_layers)
        ]
    except RuntimeError as error:
        raise allocation_error(size, error) from None
