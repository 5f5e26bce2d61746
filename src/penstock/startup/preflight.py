"""Rejects settings that must fail with this model on this machine, before torch is imported or weights are read.

The engine checks again with exact figures (`startup.decide`, `forward.memory`); the checks here are at most as strict.
Of the nodes of a cluster nothing is known here: what this machine has is not looked at then.
"""

from __future__ import annotations

import ctypes
import re
import sys

from penstock.errors import InvalidSetting, OutOfMemory
from penstock.flow.transfer import Transport
from penstock.settings import Settings, parse_bytes
from penstock.store.kv_types import KvTypes, kv_types
from penstock.store.spec import ModelSpec
from penstock.store.spec_check import chosen_context
from penstock.store.tensor_parallel import check_degree, rank_spec
from penstock.system import resources
from penstock.system.extras import require_torch

DRIVER = "libcuda.so.1"
SPECULATE = re.compile(r"off|auto|lookup|mtp|(draft|eagle|medusa):.+")
LEAST_CONTEXT = 256  # tokens: the context is never shortened below this to fit memory
LEAST_KV_DTYPE = "float16"  # of what auto may become


def uses_gpu(settings: Settings) -> bool:
    """Whether the engine will run on a GPU, as far as can be known without torch."""
    device = settings.model.device
    return device == "cuda" or (device == "auto" and has_driver())


def check(settings: Settings, spec: ModelSpec) -> None:
    """Raises InvalidSetting or OutOfMemory, with the name of the setting."""
    chosen_context(spec, settings.model.context)
    if here := settings.serve.cluster is None:
        _check_machine(settings)
    if not SPECULATE.fullmatch(how := settings.engine.speculate):
        raise InvalidSetting(
            f"speculate: {how!r} is none of off, auto, lookup, mtp, draft:MODEL, eagle:FOLDER and medusa:FOLDER",
            param="speculate",
        )
    ranks = settings.engine.tensor_parallel
    if ranks > 1:
        _check_ranks(settings, spec, here=here)
    _least_types(settings).check_head_dim(spec.head_dim, spec.name)
    if settings.cache.kv_memory is not None:
        asked = parse_bytes(settings.cache.kv_memory, "kv_memory")
        _check_least(asked, settings, rank_spec(spec, ranks))
        # of a device the memory counts that the engine knows, and of a cluster that of the node
        if here and (settings.model.device == "cpu" or not has_driver()):
            check_most(asked * ranks, resources.host_bytes())


def _check_machine(settings: Settings) -> None:
    """What an engine on this machine needs."""
    device, dtype = settings.model.device, settings.model.dtype
    if device == "cuda" and not has_driver():
        raise InvalidSetting(
            f"device: no CUDA device: the NVIDIA driver ({DRIVER}) is missing; use device cpu or auto", param="device"
        )
    if device == "cuda":
        require_torch("device cuda", "device")
    if dtype != "auto":
        require_torch(f"dtype {dtype}", "dtype")


def check_pools(settings: Settings, transport: Transport) -> None:
    """Of a model with `prefill_replicas`; what its entry alone tells is checked with the settings."""
    if settings.serve.cluster is not None and transport != "tcp":
        raise InvalidSetting(
            f"kv_transport: {transport} is of one host, and the engines of a cluster may be on several: set "
            "kv_transport to tcp, or leave cluster or prefill_replicas out",
            param="kv_transport",
        )
    here = settings.serve.cluster is None
    on_gpu = uses_gpu(settings) if here else settings.model.device == "cuda"  # the nodes say more
    if on_gpu or (here and sys.platform != "linux"):
        where = "on a GPU yet: set device cpu" if on_gpu else f"on {sys.platform}: they need Linux"
        raise InvalidSetting(f"prefill_replicas: prefill and decode pools do not run {where}", param="prefill_replicas")


def _check_ranks(settings: Settings, spec: ModelSpec, *, here: bool) -> None:
    """`here`: on this machine, not on a cluster."""
    check_degree(spec, settings.engine.tensor_parallel)
    on_gpu = uses_gpu(settings) if here else settings.model.device != "cpu"  # the nodes know
    if here and on_gpu:
        check_gpus(settings.engine.tensor_parallel, resources.gpu_count())
    if here:
        require_torch("tensor_parallel", "tensor_parallel")
    if settings.model.quantize is not None and not on_gpu:
        raise InvalidSetting(
            f"quantize: on a CPU the ranks of tensor_parallel compute with torch, which has no products of "
            f"{settings.model.quantize} weights: leave quantize out (dtype bfloat16 takes half of the memory), or "
            "tensor_parallel",
            param="quantize",
        )


def check_gpus(ranks: int, count: int) -> None:
    """Each rank has a GPU of its own. `count`: of those that this process may use; 0: not known."""
    if 0 < count < ranks:
        raise InvalidSetting(
            f"tensor_parallel: {ranks} ranks need a GPU each, but there {'is' if count == 1 else 'are'} {count}: lower "
            "tensor_parallel, or set device cpu",
            param="tensor_parallel",
        )


def check_most(asked_bytes: int, free_bytes: int) -> None:
    """An explicit kv_memory is never reduced silently."""
    if asked_bytes > free_bytes:
        raise OutOfMemory(
            f"kv_memory: {readable(asked_bytes)} exceed the free memory of {readable(free_bytes)}; lower it, or leave "
            "it out to use a share of the free memory",
            param="kv_memory",
        )


def _check_least(asked_bytes: int, settings: Settings, spec: ModelSpec) -> None:
    context = settings.model.context or min(LEAST_CONTEXT, spec.context)
    least_bytes = _least_bytes(spec, settings, context)
    if asked_bytes < least_bytes:
        raise OutOfMemory(
            f"kv_memory: {readable(asked_bytes)} hold no sequence of {context} tokens, which takes "
            f"{readable(least_bytes)} or more: {readable(least_bytes - asked_bytes)} are missing",
            param="kv_memory",
        )


def _least_bytes(spec: ModelSpec, settings: Settings, context: int) -> int:
    """KV blocks of one sequence computed token by token, and the padding block of each cache group."""
    types, block_size = _least_types(settings), settings.cache.block_size
    return sum(
        (group.most_blocks(context, 1, block_size) + 1) * spec.block_bytes(group, block_size, types)
        for group in spec.cache_groups
    )


def _least_types(settings: Settings) -> KvTypes:
    """Those that take the fewest bytes, of what the settings may come to."""
    name = settings.cache.kv_dtype
    types = kv_types(LEAST_KV_DTYPE if name == "auto" else name)
    return types._replace(on_gpu=uses_gpu(settings), static_scales=True)


def has_driver() -> bool:
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


def readable(count: int) -> str:
    """A size such as 1.50 GiB."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.{2 if unit == 'GiB' else 1}f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
