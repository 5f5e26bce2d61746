"""Types of keys and values in the KV cache, and the bytes they take.

Where keys and values have different types, both are named, keys first: `int8,int4`. int8 has a scale for each head of
each token, and so has fp8, which GPUs alone have; int4 has one for every 32 numbers of a head on a CPU
(native/attention.h), and four for each head on a GPU (kernels/cuda/kv_codes.py).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from penstock.errors import InvalidSetting

KvType = Literal["float32", "bfloat16", "float16", "fp8", "int8", "int4"]

BITS: dict[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16, "fp8": 8, "int8": 8, "int4": 4}
QUANTIZED = ("fp8", "int8", "int4")
INT8_SCALE_BYTES = 4  # of fp8, too
INT4_GROUP, INT4_SCALE_BYTES = 32, 2
GPU_INT4_SCALES = 4


class KvTypes(NamedTuple):
    keys: KvType
    values: KvType
    on_gpu: bool = False
    static_scales: bool = False  # fp8 has one scale for all tokens: the checkpoint's

    def __str__(self) -> str:
        return self.keys if self.keys == self.values else f"{self.keys},{self.values}"

    def head_bytes(self, head_dim: int) -> int:
        """Key and value of one head of one token."""
        return sum(self._one_head_bytes(kind, head_dim) for kind in (self.keys, self.values))

    def _one_head_bytes(self, kind: KvType, head_dim: int) -> int:
        if self.on_gpu and kind == "int4":
            return head_dim // 2 + GPU_INT4_SCALES * INT4_SCALE_BYTES
        if self.static_scales and kind == "fp8":
            return head_dim
        return head_bytes(kind, head_dim)

    def check_head_dim(self, head_dim: int, model: str) -> None:
        """Codes are read as bytes on a CPU, in units of 16 bits on a GPU."""
        for kind in (self.keys, self.values):
            together = {"int4": 4 if self.on_gpu else 2, "int8": 2 if self.on_gpu else 1, "fp8": 2}.get(kind, 1)
            if head_dim % together:
                size = "an even size" if together == 2 else f"a multiple of {together}"
                raise InvalidSetting(
                    f"kv_dtype: {kind} needs heads of {size}, {model} has heads of {head_dim}", param="kv_dtype"
                )


def kv_types(name: str) -> KvTypes:
    """Of a setting that is valid and not auto: `int8`, or `int8,int4`."""
    keys, _, values = name.partition(",")
    return KvTypes(cast(KvType, keys), cast(KvType, values or keys))


def head_bytes(kind: str, head_dim: int) -> int:
    """One key or value of one head, with its scales."""
    int4 = -(-head_dim // INT4_GROUP) * INT4_SCALE_BYTES
    scales = {"fp8": INT8_SCALE_BYTES, "int8": INT8_SCALE_BYTES, "int4": int4}.get(kind, 0)
    return head_dim * BITS[kind] // 8 + scales
