"""The size of the KV cache, and its memory.

A block of a cache group holds the keys and values of `block_size` tokens in all layers of the group. Block 0 of each
group belongs to no sequence (see `kernels.interface.Pages`) and is counted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass

import torch
from torch import Tensor

from penstock.errors import OutOfMemory
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.interface import Pages
from penstock.settings import CacheSettings, parse_bytes
from penstock.startup.preflight import LEAST_CONTEXT, check_most, readable
from penstock.store.spec import CacheGroup, ModelSpec
from penstock.system import resources

CPU_FRACTION = 0.25  # of the free memory: other programs need some
DEVICE_FRACTION = 0.9  # of the device's memory


@dataclass(frozen=True, slots=True)
class CacheSize:
    """The number of blocks of each cache group, and their bytes."""

    block_size: int  # tokens
    blocks: tuple[int, ...]  # [groups], block 0 included
    block_bytes: tuple[int, ...]  # [groups]
    context: int = 0  # most tokens of a sequence that fits

    @property
    def num_bytes(self) -> int:
        return sum(count * size for count, size in zip(self.blocks, self.block_bytes, strict=True))


def size_cache(
    spec: ModelSpec,
    settings: CacheSettings,
    *,
    dtype: torch.dtype,
    device: torch.device,
    context: int | None,
    max_sequences: int,
    step_tokens: int,
) -> CacheSize:
    """As many blocks as the settings allow and the sequences can use. Call it once the weights are in memory.

    `context` None: the longest that fits, up to the model's own; any other must fit.

    All groups get blocks for equally many tokens, which is what short sequences need. A group with a window gets at
    most what `max_sequences` can hold at once; the rest goes to the others.
    """
    budget, free, source = _budget(settings, device)
    if settings.kv_memory is not None:
        check_most(budget, free)
    block_size = settings.block_size
    block_bytes = tuple(block_bytes_of(spec, group, block_size, dtype) for group in spec.cache_groups)

    def one_sequence(context: int) -> CacheSize:
        held = (group.most_blocks(context, step_tokens, block_size) + 1 for group in spec.cache_groups)
        return CacheSize(block_size, tuple(held), block_bytes, context)

    least = one_sequence(context or spec.context)
    if least.num_bytes > budget:
        places = range(block_size, spec.context + 1, block_size)  # whole blocks: none is left half used
        fitting = bisect_right(places, budget, key=lambda tokens: one_sequence(tokens).num_bytes) * block_size
        if context is not None or fitting < LEAST_CONTEXT:
            knob = "kv_memory" if settings.kv_memory else "memory_fraction"
            raise OutOfMemory(
                f"a sequence of {least.context} tokens needs {readable(least.num_bytes)} of KV cache, but there is "
                f"{readable(budget)} ({source}): {readable(least.num_bytes - budget)} are missing; lower context "
                f"({fitting} tokens would fit) or raise {knob}",
                param=knob,
            )
        least = one_sequence(fitting)
    one = [count - 1 for count in least.blocks]
    most = [count * max_sequences for count in one]

    def sized(blocks: int) -> CacheSize:
        held = (min(max(blocks, low), high) + 1 for low, high in zip(one, most, strict=True))
        return CacheSize(block_size, tuple(held), block_bytes, least.context)

    return sized(bisect_right(range(max(most) + 1), budget, key=lambda blocks: sized(blocks).num_bytes) - 1)


def check_weights(num_bytes: int, settings: CacheSettings, device: torch.device) -> None:
    """Raise OutOfMemory, before the weights are loaded, if they or the `kv_memory` beside them do not fit."""
    free = resources.host_bytes() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    if num_bytes > free:
        raise OutOfMemory(
            f"the weights take {readable(num_bytes)}, but {device} has {readable(free)} free: "
            f"{readable(num_bytes - free)} are missing. Choose a smaller model or a smaller dtype",
            param="model",
        )
    if settings.kv_memory is not None:
        check_most(parse_bytes(settings.kv_memory, "kv_memory"), free - num_bytes)


def allocate_pages(spec: ModelSpec, size: CacheSize, dtype: torch.dtype, device: torch.device) -> list[Pages]:
    """The KV pages of each layer, not initialised: on a CPU the system provides memory when a block is first
    written."""
    blocks = {
        layer: count for group, count in zip(spec.cache_groups, size.blocks, strict=True) for layer in group.layers
    }
    shape = (size.block_size, spec.num_kv_heads, spec.head_dim)
    try:
        return [
            Pages(*(torch.empty(blocks[layer], *shape, dtype=dtype, device=device) for _ in ("keys", "values")))
            for layer in range(spec.num_layers)
        ]
    except RuntimeError as error:
        raise _allocation_error(size, error) from None


def allocate_native_pages(spec: ModelSpec, size: CacheSize, dtype: torch.dtype) -> list[Pages]:
    """The same for the native kernels. A block is one piece of memory for all layers of its group, so that memory in
    use follows the tokens in use, in spite of huge pages."""
    pages: dict[int, Pages] = {}
    try:
        for group, blocks, block_bytes in zip(spec.cache_groups, size.blocks, size.block_bytes, strict=True):
            memory = Arena().empty(blocks, block_bytes, dtype=torch.uint8)
            for place, layer in enumerate(group.layers):
                share = block_bytes // len(group.layers)
                pages[layer] = _native_pages(spec, size.block_size, dtype, memory[:, place * share :][:, :share])
    except (RuntimeError, OSError) as error:
        raise _allocation_error(size, error) from None
    return [pages[layer] for layer in range(spec.num_layers)]


def _native_pages(spec: ModelSpec, block_size: int, dtype: torch.dtype, memory: Tensor) -> Pages:
    """Keys, values and their scales in memory [blocks, bytes], one after the other in each block."""
    heads, dim = spec.num_kv_heads, spec.head_dim
    codes = heads * dim * block_size * dtype.itemsize
    keys = memory[:, :codes].view(dtype).view(-1, heads, dim, block_size)
    values = memory[:, codes : 2 * codes].view(dtype).view(-1, heads, block_size, dim)
    if dtype != torch.int8:
        return Pages(keys, values)
    scales = memory[:, 2 * codes :].view(torch.float32).view(-1, 2, heads, block_size)
    return Pages(keys, values, scales[:, 0], scales[:, 1])


def _allocation_error(size: CacheSize, error: Exception) -> OutOfMemory:
    return OutOfMemory(
        f"{readable(size.num_bytes)} for the KV cache could not be allocated: {error}. Lower kv_memory or "
        "memory_fraction",
        param="kv_memory",
    )


def _budget(settings: CacheSettings, device: torch.device) -> tuple[int, int, str]:
    """Bytes for KV blocks, free bytes, and the origin of the first number in words."""
    if device.type == "cpu":
        free = resources.host_bytes()
        fraction = settings.memory_fraction or CPU_FRACTION
        budget = int(free * fraction)
        source = f"memory_fraction {fraction} of the {readable(free)} that are free"
    else:
        free, total = torch.cuda.mem_get_info(device)
        fraction = settings.memory_fraction or DEVICE_FRACTION
        own = torch.cuda.memory_reserved(device)  # other engines on this GPU have their own share
        spared = int(total * (1 - max(fraction, DEVICE_FRACTION)))
        budget = max(0, min(int(total * fraction) - own, free - spared))
        source = f"memory_fraction {fraction} of {readable(total)}, of which {readable(total - free)} are in use"
    if settings.kv_memory is not None:
        budget, source = parse_bytes(settings.kv_memory, "kv_memory"), "kv_memory"
    return budget, free, source


def block_bytes_of(spec: ModelSpec, group: CacheGroup, block_size: int, dtype: torch.dtype) -> int:
    return spec.block_bytes(group, block_size, dtype.itemsize, 4 if dtype == torch.int8 else 0)
