"""Types of keys and values in the KV cache, and the bytes they take.

Where keys and values have different types, both are named, keys first: `int8,int4`. int8 has a scale for each head of
each token, int4 one for every 32 numbers of it (native/attention.h).
"""

from __future__ import annotations

from typing import Literal, NamedTuple, cast

from penstock.errors import InvalidSetting

KvType = Literal["float32", "bfloat16", "float16", "int8", "int4"]

BITS: dict[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16, "fp8": 8, "int8": 8, "int4": 4}
INT8_SCALE_BYTES = 4
INT4_GROUP, INT4_SCALE_BYTES = 32, 2


class KvTypes(NamedTuple):
    keys: KvType
    values: KvType

    def __str__(self) -> str:
        return self.keys if self.keys == self.values else f"{self.keys},{self.values}"

    def head_bytes(self, head_dim: int) -> int:
        """Key and value of one head of one token."""
        return sum(head_bytes(kind, head_dim) for kind in self)

    def check_head_dim(self, head_dim: int, model: str) -> None:
        """int4 has two numbers in a byte."""
        if "int4" in self and head_dim % 2:
            raise InvalidSetting(
                f"kv_dtype: int4 needs heads of an even size, {model} has heads of {head_dim}", param="kv_dtype"
            )


def kv_types(name: str) -> KvTypes:
    """Of a setting that is valid and not auto: `int8`, or `int8,int4`."""
    keys, _, values = name.partition(",")
    return KvTypes(cast(KvType, keys), cast(KvType, values or keys))


def head_bytes(kind: str, head_dim: int) -> int:
    """One key or value of one head, with its scales."""
    scales = {"int8": INT8_SCALE_BYTES, "int4": -(-head_dim // INT4_GROUP) * INT4_SCALE_BYTES}.get(kind, 0)
    return head_dim * BITS[kind] // 8 + scales
