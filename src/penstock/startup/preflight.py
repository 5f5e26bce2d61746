"""Settings that can only fail with this model on this machine, found out before torch is imported or weights are read.

The engine decides with exact figures (`start`, `forward.memory`); what is checked here is at least as lenient.
"""

from __future__ import annotations

import ctypes

from penstock.errors import InvalidSetting, OutOfMemory
from penstock.settings import CacheSettings, Settings, parse_bytes
from penstock.store.spec import ModelSpec
from penstock.store.spec_check import chosen_context
from penstock.system import resources

DRIVER = "libcuda.so.1"
LEAST_CONTEXT = 256  # tokens: a model that can be asked less is of no use, and no context is shortened below it
LEAST_KV_ITEMSIZE = {"auto": 2, "float32": 4, "float16": 2, "int8": 1}


def check(settings: Settings, spec: ModelSpec) -> None:
    """Raises InvalidSetting or OutOfMemory, with the name of the setting."""
    chosen_context(spec, settings.model.context)
    device = settings.model.device
    if device == "cuda" and not _has_driver():
        raise InvalidSetting(
            f"device: there is no CUDA device here: the NVIDIA driver ({DRIVER}) is missing", param="device"
        )
    if settings.cache.kv_memory is not None:
        asked = parse_bytes(settings.cache.kv_memory, "kv_memory")
        _check_least(asked, settings, spec)
        if device == "cpu" or not _has_driver():  # else it is the device's memory that counts: the engine knows it
            check_most(asked, resources.host_bytes())


def check_most(asked_bytes: int, free_bytes: int) -> None:
    """Of an explicit kv_memory: no part of it is left out in silence."""
    if asked_bytes > free_bytes:
        raise OutOfMemory(
            f"kv_memory: {readable(asked_bytes)} were asked for, but only {readable(free_bytes)} are free; lower it, "
            "or leave it out to use a share of what is free",
            param="kv_memory",
        )


def _check_least(asked_bytes: int, settings: Settings, spec: ModelSpec) -> None:
    context = settings.model.context or min(LEAST_CONTEXT, spec.context)
    least_bytes = _least_bytes(spec, settings.cache, context)
    if asked_bytes < least_bytes:
        raise OutOfMemory(
            f"kv_memory: {readable(asked_bytes)} were asked for, but a sequence of {context} tokens takes "
            f"{readable(least_bytes)} or more: {readable(least_bytes - asked_bytes)} are missing",
            param="kv_memory",
        )


def _least_bytes(spec: ModelSpec, settings: CacheSettings, context: int) -> int:
    """Of KV blocks, for one sequence computed token by token, and the block of each group that is nobody's."""
    itemsize = LEAST_KV_ITEMSIZE[settings.kv_dtype]
    return sum(
        (group.most_blocks(context, 1, settings.block_size) + 1)
        * spec.block_bytes(group, settings.block_size, itemsize)
        for group in spec.cache_groups
    )


def _has_driver() -> bool:
    try:
        ctypes.CDLL(DRIVER)
    except OSError:
        return False
    return True


def readable(count: int) -> str:
    """Bytes, for people."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.{2 if unit == 'GiB' else 1}f} {unit}"
        size /= 1024
    return f"{size:.2f} TiB"
