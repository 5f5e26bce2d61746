"""Arrays on the host: numpy's, and what numpy lacks, which is bfloat16.

An array of uint16 holds bfloat16 numbers, bit by bit; weights have no other use for that type.
"""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Types of numbers, named as in numpy and torch.
Dtype = Literal["float32", "bfloat16", "float16", "int8"]
ITEMSIZES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}

BFLOAT16 = np.dtype(np.uint16)


def to_float32(values: Array) -> Array:
    """Exact but for float64. Not a copy if the values are float32."""
    if values.dtype != BFLOAT16:
        return values.astype(np.float32, copy=False)
    wide = values.astype(np.uint32)
    wide <<= 16
    return wide.view(np.float32)


def round_float(value: float, dtype: Dtype) -> float:
    """The nearest number of a float type."""
    if dtype != "bfloat16":
        return float(np.dtype(dtype).type(value))
    bits = int(np.float32(value).view(np.uint32))
    bits += 0x7FFF + (bits >> 16 & 1)  # ties to even
    return float(np.uint32(bits & 0xFFFF0000).view(np.float32))
