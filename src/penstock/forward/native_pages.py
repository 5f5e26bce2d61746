"""KV pages of the native kernels."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from penstock.forward.memory import CacheSize, allocation_error, draft_block_bytes
from penstock.kernels.arrays import Array
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.interface import Pages, as_tensor
from penstock.store.kv_types import INT4_GROUP, KvType, KvTypes
from penstock.store.spec import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor


def allocate_native_pages(spec: ModelSpec, size: CacheSize, types: KvTypes) -> list[Pages]:
    """The KV pages of each layer, over memory of their own."""
    return native_pages(spec, size, types, allocate_kv_memory(spec, size, types))


def allocate_kv_memory(spec: ModelSpec, size: CacheSize, types: KvTypes) -> list[Array]:
    """[groups] of [blocks, bytes], not initialised: the system provides memory when a block is first written. A block
    is one piece of memory for all layers of its group, so that memory in use follows the tokens in use, in spite of
    huge pages."""
    types.check_head_dim(spec.head_dim, spec.name)
    try:
        pairs = zip(size.blocks, size.block_bytes, strict=True)
        return [Arena().empty(blocks, block_bytes, dtype=np.uint8) for blocks, block_bytes in pairs]
    except (OverflowError, OSError, ValueError) as error:
        raise allocation_error(size, error) from None


def native_pages(spec: ModelSpec, size: CacheSize, types: KvTypes, memory: Sequence[Array]) -> list[Pages]:
    """The KV pages of each layer, in memory of `allocate_kv_memory`."""
    pages: dict[int, Pages] = {}
    for group, blocks in zip(spec.cache_groups, memory, strict=True):
        share = blocks.shape[1] // len(group.layers)
        for place, layer in enumerate(group.layers):
            pages[layer] = _pages(spec, size.block_size, types, blocks[:, place * share :][:, :share])
    return [pages[layer] for layer in range(spec.num_layers)]


def allocate_draft_pages(spec: ModelSpec, blocks: int, block_size: int, types: KvTypes) -> list[Pages]:
    """Of a proposer's layers, each with as many blocks as the target has of full attention."""
    size = CacheSize(block_size, (blocks,), (draft_block_bytes(spec, block_size, types),))
    return allocate_native_pages(msgspec.structs.replace(spec, windows=()), size, types)


def _pages(spec: ModelSpec, block_size: int, types: KvTypes, memory: Array) -> Pages:
    """Keys, values and their scales in memory [blocks, bytes], one after the other in each block."""
    heads, dim = spec.num_kv_heads, spec.head_dim
    begin = 0

    def part(dtype: str, *shape: int) -> Array:
        nonlocal begin
        begin, first = begin + prod(shape) * np.dtype(dtype).itemsize, begin
        return memory[:, first:begin].view(dtype).reshape(-1, *shape)

    def codes(kind: KvType, by_token: bool) -> Array:
        dtype, size = ("uint8", dim // 2) if kind == "int4" else (kind, dim)
        return part(dtype, heads, block_size, size) if by_token else part(dtype, heads, size, block_size)

    def scales(kind: KvType, by_token: bool) -> Tensor | None:
        if kind == "int8":
            return as_tensor(part("float32", heads, block_size))
        if kind != "int4":
            return None
        groups = -(-dim // INT4_GROUP)
        return as_tensor(part("float16", *((heads, block_size, groups) if by_token else (heads, groups, block_size))))

    keys, values = codes(types.keys, False), codes(types.values, True)
    return Pages(as_tensor(keys), as_tensor(values), scales(types.keys, False), scales(types.values, True))
