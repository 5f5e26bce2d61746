"""KV pages of a CUDA backend, in the types that the settings name (`kernels.cuda.kv_codes`)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from penstock.errors import InvalidSetting
from penstock.forward.memory import CacheSize, allocation_error
from penstock.kernels.cuda.kv_codes import Allocate, empty
from penstock.kernels.interface import Pages
from penstock.model.weights.kv_scales import KvScales
from penstock.store.kv_types import KvTypes
from penstock.store.spec import ModelSpec

FP8_CAPABILITY = (8, 9)  # from which on a GPU converts e4m3 itself


class CudaPages:
    """Allocates the pages of each layer."""

    def __init__(
        self, types: KvTypes, scales: Sequence[KvScales] | None, dtype: torch.dtype, device: torch.device
    ) -> None:
        """`scales`: static ones, by layer. `dtype`: of keys and values that are not quantized. Raises InvalidSetting
        where the device does not know a type."""
        if "fp8" in types and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
            raise InvalidSetting(
                f"kv_dtype: fp8 needs a GPU of compute capability {'.'.join(map(str, FP8_CAPABILITY))} or higher; "
                "int8 takes as many bytes",
                param="kv_dtype",
            )
        self._types, self._scales, self._dtype, self.device = types, scales, dtype, device

    def allocate(self, spec: ModelSpec, size: CacheSize, allocate: Allocate | None = None) -> list[Pages]:
        """Not initialised. `allocate`: where they are; static scales are elsewhere, since they must not get lost."""
        self._types.check_head_dim(spec.head_dim, spec.name)
        counts = {
            layer: count for group, count in zip(spec.cache_groups, size.blocks, strict=True) for layer in group.layers
        }
        try:
            return [self._layer(spec, layer, counts[layer], size, allocate) for layer in range(spec.num_layers)]
        except RuntimeError as error:
            raise allocation_error(size, error) from None

    def _layer(self, spec: ModelSpec, layer: int, blocks: int, size: CacheSize, allocate: Allocate | None) -> Pages:
        shape = (blocks, size.block_size, spec.num_kv_heads, spec.head_dim)
        static = None if self._scales is None else self._scales[layer]
        keys, key_scales = self._part(self._types.keys, shape, static and static.key, allocate)
        values, value_scales = self._part(self._types.values, shape, static and static.value, allocate)
        return Pages(keys, values, key_scales, value_scales)

    def _part(
        self, kind: str, shape: tuple[int, int, int, int], static: float | None, allocate: Allocate | None
    ) -> tuple[Tensor, Tensor | None]:
        def on_device(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
            return torch.empty(tuple(shape), dtype=dtype, device=self.device)

        if kind == "fp8" and static is not None:
            return empty("static", shape, self._dtype, allocate or on_device)[0], torch.tensor(
                [static], device=self.device
            )
        return empty(kind, shape, self._dtype, allocate or on_device)
