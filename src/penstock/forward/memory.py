"""The size of the KV cache, from the memory that a device has.

A block of a cache group holds the keys and values of `block_size` tokens in all layers of the group. Block 0 of each
group belongs to no sequence (see `kernels.interface.Pages`) and is counted.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import NamedTuple

from penstock.errors import OutOfMemory
from penstock.settings import CacheSettings, parse_bytes
from penstock.startup.preflight import LEAST_CONTEXT, check_most, readable
from penstock.store.kv_types import KvTypes
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


class DeviceMemory(NamedTuple):
    """Bytes of the device that weights and cache are on."""

    name: str
    free: int
    total: int | None = None  # None: the host's, which other programs share
    own: int = 0  # of those in use: this engine's


def host_memory(ranks: int = 1) -> DeviceMemory:
    """`ranks` that share it: what one of them may use."""
    name = "cpu" if ranks == 1 else f"each of the {ranks} ranks on the cpu"
    return DeviceMemory(name, resources.host_bytes() // ranks)


def size_cache(
    spec: ModelSpec,
    settings: CacheSettings,
    *,
    types: KvTypes,
    memory: DeviceMemory,
    context: int | None,
    max_sequences: int,
    step_tokens: int,
    drafting: ModelSpec | None = None,
) -> CacheSize:
    """As many blocks as the settings allow and the sequences can use. Call it once the weights are in memory.

    `context` None: the longest that fits, up to the model's own; any other must fit. `drafting`: layers of a proposer
    that have keys and values beside each block of full attention, in the same memory.

    All groups get blocks for equally many tokens, which is what short sequences need. A group with a window gets at
    most what `max_sequences` can hold at once; the rest goes to the others.
    """
    budget, source = _budget(settings, memory)
    if settings.kv_memory is not None:
        check_most(budget, memory.free)
    block_size = settings.block_size
    block_bytes = tuple(spec.block_bytes(group, block_size, types) for group in spec.cache_groups)
    if drafting is not None:
        budget = budget * block_bytes[0] // (block_bytes[0] + draft_block_bytes(drafting, block_size, types))

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


def check_weights(num_bytes: int, settings: CacheSettings, memory: DeviceMemory) -> None:
    """Raise OutOfMemory, before the weights are loaded, if they or the `kv_memory` beside them do not fit."""
    free = memory.free
    if num_bytes > free:
        raise OutOfMemory(
            f"the weights take {readable(num_bytes)}, but {memory.name} has {readable(free)} free: "
            f"{readable(num_bytes - free)} are missing. Choose a smaller model or a smaller dtype",
            param="model",
        )
    if settings.kv_memory is not None:
        check_most(parse_bytes(settings.kv_memory, "kv_memory"), free - num_bytes)


def allocation_error(size: CacheSize, error: Exception) -> OutOfMemory:
    return OutOfMemory(
        f"{readable(size.num_bytes)} for the KV cache could not be allocated: {error}. Lower kv_memory or "
        "memory_fraction",
        param="kv_memory",
    )


def _budget(settings: CacheSettings, memory: DeviceMemory) -> tuple[int, str]:
    """Bytes for KV blocks, and the origin of the number in words."""
    if settings.kv_memory is not None:
        return parse_bytes(settings.kv_memory, "kv_memory"), "kv_memory"
    free, total = memory.free, memory.total
    if total is None:
        fraction = settings.memory_fraction or CPU_FRACTION
        return int(free * fraction), f"memory_fraction {fraction} of the {readable(free)} that are free"
    fraction = settings.memory_fraction or DEVICE_FRACTION
    spared = int(total * (1 - max(fraction, DEVICE_FRACTION)))
    budget = max(0, min(int(total * fraction) - memory.own, free - spared))  # other engines have their own share
    return budget, f"memory_fraction {fraction} of {readable(total)}, of which {readable(total - free)} are in use"


def draft_block_bytes(spec: ModelSpec, block_size: int, types: KvTypes) -> int:
    """Of a proposer's layers, which all have blocks of full attention; no checkpoint has static scales of these."""
    group = CacheGroup(0, tuple(range(spec.num_layers)))
    return spec.block_bytes(group, block_size, types._replace(static_scales=False))
