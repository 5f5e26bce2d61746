"""Weights, memory and KV pages of a backend that computes with torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import Tensor

from penstock.errors import InvalidSetting
from penstock.forward.backend import BackendConfig
from penstock.forward.memory import CacheSize, DeviceMemory, allocation_error, check_weights, host_memory
from penstock.kernels.interface import Pages
from penstock.model import Decoder, DummySource, Source, open_source
from penstock.model.load_coded import blank_layers, coded_bytes, load_coded
from penstock.model.load_dense import TORCH_DTYPES, load_dense, weight_bytes
from penstock.model.weights.coded_form import FP8_CAPABILITY, CodedForm
from penstock.model.weights.dense_form import Allocate, DenseForm
from penstock.model.weights.dummy_tensors import BlankSource, DeviceDummySource
from penstock.store.spec import ModelSpec


def coded_form(config: BackendConfig, device: torch.device, allocate: Allocate | None = None) -> CodedForm | None:
    """For weights that keep their codes, or are rounded to codes; None: all are tensors of the compute dtype."""
    dtype, quantize = TORCH_DTYPES[config.dtype], config.settings.model.quantize
    if device.type != "cuda" or not (quantize or has_codes(config)):
        return None
    if dtype.itemsize != 2:
        if quantize:
            raise InvalidSetting(f"quantize: {quantize} needs dtype float16 or bfloat16", param="quantize")
        return None
    capability = torch.cuda.get_device_capability(device)
    if quantize == "fp8" and capability < FP8_CAPABILITY:
        name, needed = torch.cuda.get_device_name(device), _dotted(FP8_CAPABILITY)
        raise InvalidSetting(
            f"quantize: fp8 needs compute capability {needed}, and {name} has {_dotted(capability)}: take int8",
            param="quantize",
        )
    return CodedForm(DenseForm(dtype, device, allocate), quantize, capability >= FP8_CAPABILITY)


def _dotted(capability: tuple[int, int]) -> str:
    return ".".join(map(str, capability))


def has_codes(config: BackendConfig) -> bool:
    """Whether the checkpoint may be quantized."""
    if config.settings.model.load_format == "dummy":
        return False
    return config.files.format == "gguf" or config.spec.quantization is not None


def open_weights(config: BackendConfig, device: torch.device) -> Source:
    files = config.files
    if config.settings.model.load_format == "dummy":
        return DummySource() if device.type == "cpu" else DeviceDummySource(device)
    return open_source(files.weights, files.format, config.spec.quantization)


def load_model(
    config: BackendConfig, device: torch.device, allocate: Allocate | None = None, source: Source | None = None
) -> Decoder:
    """`source`: what `open_weights` gave, if it was called before."""
    spec, dtype, shard = config.spec, TORCH_DTYPES[config.dtype], config.shard
    form = coded_form(config, device, allocate)
    source = source or open_weights(config, device)
    if shard.rank == 0 or device.type != "cpu":  # ranks on a CPU share its memory
        memory = device_memory(device) if device.type != "cpu" else host_memory(shard.world)
        needed = (
            weight_bytes(spec, dtype=dtype, device=device, shard=shard)
            if form is None
            else coded_bytes(spec, source, form, shard)
        )
        check_weights(needed, config.settings.cache, memory)
    threads = config.threads if has_codes(config) else 1  # other formats are only copied
    if form is not None:
        return load_coded(spec, source, form, context=config.context, threads=threads, shard=shard)
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


def load_blank(config: BackendConfig, form: CodedForm, stored: Source | None, least: int) -> Decoder:
    """At least `least` layers, in all forms that the layers of the real model have, with nothing in them. `stored`: of
    weights that are quantized already."""
    spec = config.spec
    like = None if stored is None else blank_layers(spec, stored, least)
    small = replace(spec, num_layers=min(spec.num_layers, least) if like is None else like.num_layers)
    source = BlankSource(form.dense.device, like)
    return load_coded(small, source, form, context=config.context, shard=config.shard)


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
