"""KV pages of the native kernels."""

from __future__ import annotations

import msgspec
import numpy as np

from penstock.forward.memory import CacheSize, allocation_error, draft_block_bytes
from penstock.kernels.arrays import Array, Dtype
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.interface import Pages, as_tensor
from penstock.store.spec import ModelSpec


def allocate_native_pages(spec: ModelSpec, size: CacheSize, dtype: Dtype) -> list[Pages]:
    """The KV pages of each layer, not initialised: the system provides memory when a block is first written. A block is
    one piece of memory for all layers of its group, so that memory in use follows the tokens in use, in spite of huge
    pages."""
    pages: dict[int, Pages] = {}
    try:
        for group, blocks, block_bytes in zip(spec.cache_groups, size.blocks, size.block_bytes, strict=True):
            memory = Arena().empty(blocks, block_bytes, dtype=np.uint8)
            for place, layer in enumerate(group.layers):
                share = block_bytes // len(group.layers)
                pages[layer] = _pages(spec, size.block_size, dtype, memory[:, place * share :][:, :share])
    except (OverflowError, OSError, ValueError) as error:
        raise allocation_error(size, error) from None
    return [pages[layer] for layer in range(spec.num_layers)]


def allocate_draft_pages(spec: ModelSpec, blocks: int, block_size: int, dtype: Dtype) -> list[Pages]:
    """Of a proposer's layers, each with as many blocks as the target has of full attention."""
    size = CacheSize(block_size, (blocks,), (draft_block_bytes(spec, block_size, dtype),))
    return allocate_native_pages(msgspec.structs.replace(spec, windows=()), size, dtype)


def _pages(spec: ModelSpec, block_size: int, dtype: Dtype, memory: Array) -> Pages:
    """Keys, values and their scales in memory [blocks, bytes], one after the other in each block."""
    heads, dim = spec.num_kv_heads, spec.head_dim
    codes = heads * dim * block_size * np.dtype(dtype).itemsize
    keys = memory[:, :codes].view(dtype).reshape(-1, heads, dim, block_size)
    values = memory[:, codes : 2 * codes].view(dtype).reshape(-1, heads, block_size, dim)
    if dtype != "int8":
        return Pages(as_tensor(keys), as_tensor(values))
    scales = memory[:, 2 * codes :].view(np.float32).reshape(-1, 2, heads, block_size)
    return Pages(*map(as_tensor, (keys, values, scales[:, 0], scales[:, 1])))
