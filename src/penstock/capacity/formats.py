"""How many bits a parameter takes in memory, and a number of the KV cache."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from penstock.store.gguf import TENSOR_TYPES
from penstock.store.kv_types import BITS, kv_types


class Format(msgspec.Struct, frozen=True):
    name: str
    bits: float  # of a parameter of a layer's matrix, its share of the block's scales included
    table_bits: float  # of one of the embedding table or the output projection
    vector_bits: float = 16.0  # of one of a norm or bias
    integers: bool = False  # CPUs multiply such weights in 8 bit


def _ggml(name: str) -> Format:
    """GGUF's: tables are quantized as well, norms are not."""
    kind = next(kind for kind in TENSOR_TYPES.values() if kind.name == name.upper())
    bits = kind.block_bytes * 8 / kind.block_elements
    return Format(name, bits, bits, 32, integers=True)


_FORMATS = (
    Format("float32", 32, 32, 32),
    Format("bfloat16", 16, 16),
    Format("float16", 16, 16),
    Format("fp8", 8, 16),
    Format("int8", 8, 16, integers=True),
    Format(
        "int4-g128", 4 + (16 + 4) / 128, 16, integers=True
    ),  # AWQ, GPTQ: a scale of 16 and a zero of 4 bits for 128 parameters
    _ggml("q8_0"),
    _ggml("q6_k"),
    Format("q5_k_m", 5.70, 5.70, 32, integers=True),  # a mixture, as the next: what it comes to in Llama 3 8B
    Format("q4_k_m", 4.89, 4.89, 32, integers=True),
    _ggml("q5_k"),
    _ggml("q4_k"),
    _ggml("q5_1"),
    _ggml("q5_0"),
    _ggml("q4_1"),
    _ggml("q4_0"),
)

FORMATS = {format.name: format for format in _FORMATS}

# GGUF's type -> bits of a parameter as `kernels.cpu.packed` keeps it: a code of 4 or 8, and scales and offsets of 16
PACKED_BITS = {
    "F32": 32,
    "F16": 16,
    "BF16": 16,
    "Q4_0": 4.5,
    "Q4_1": 5,
    "Q5_0": 8.5,
    "Q5_1": 9,
    "Q8_0": 8.5,
    "Q4_K": 5,
    "Q5_K": 9,
    "Q6_K": 9,
}
# The same as `kernels.coded` keeps it on a GPU: a code of 4, 5, 6 or 8 bits, and scales and offsets of 16
CODED_BITS = {
    "F32": 16,
    "F16": 16,
    "BF16": 16,
    "Q4_0": 4.5,
    "Q4_1": 5,
    "Q5_0": 5.5,
    "Q5_1": 6,
    "Q8_0": 8.5,
    "Q4_K": 5,
    "Q5_K": 6,
    "Q6_K": 7,
}


def packed(name: str, matrices: Mapping[str, int], tables: Mapping[str, int]) -> Format:
    """What the types of a GGUF file come to on a CPU. Given are the parameters that are in each."""
    return Format(name, _mean_bits(matrices, PACKED_BITS), _mean_bits(tables, PACKED_BITS), 32, integers=True)


def coded(name: str, matrices: Mapping[str, int]) -> Format:
    """The same on a GPU, with the embedding table in 16 bits, and the output projection as if it were, too."""
    return Format(name, _mean_bits(matrices, CODED_BITS), 16, 32)


def _mean_bits(counts: Mapping[str, int], bits: Mapping[str, float]) -> float:
    return sum(bits[name] * count for name, count in counts.items()) / sum(counts.values())


KV_FORMATS = tuple(BITS)
# Keys and values of different types, keys first.
_SMALL = ("float16", "fp8", "int8", "int4")
KV_PAIRS = tuple(
    f"{keys},{values}"
    for keys in _SMALL
    for values in _SMALL
    if keys != values and {keys, values} != {"float16", "fp8"}
)


def kv_bits(name: str, head_dim: int, device: Literal["cpu", "gpu"]) -> float:
    """Of a number in the KV cache, with its share of the scale where there is one; of a pair, the mean of both."""
    types = kv_types(name)._replace(on_gpu=device == "gpu")
    return types.head_bytes(head_dim) * 8 / (2 * head_dim)
