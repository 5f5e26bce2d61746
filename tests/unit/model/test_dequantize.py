"""Block formats against the `gguf` package: every bit pattern of the packed fields, equal to the last bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from penstock.model.weights.dequantize import dequantize
from penstock.store.gguf import TENSOR_TYPES

# kind -> where a block has float16 numbers; the other bytes may be anything
HALVES = {
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q8_0": [0],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}


@pytest.mark.parametrize("kind", HALVES)
def test_quantized(kind: str) -> None:
    draw = np.random.default_rng(0)
    blocks = draw.integers(0, 256, (300, GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]), dtype=np.uint8)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = draw.standard_normal((300, 1)).astype(np.float16).view(np.uint8)
    expected = gguf.quants.dequantize(blocks, GGMLQuantizationType[kind])
    np.testing.assert_array_equal(dequantize(kind, blocks), expected)


@pytest.mark.parametrize(("kind", "dtype"), [("F32", "f4"), ("F16", "f2"), ("BF16", "u2")])
def test_floats(kind: str, dtype: str) -> None:
    """As they are; bfloat16 by its bits."""
    values = np.random.default_rng(0).integers(0, 1000, (50, 1)).astype(dtype)
    found = dequantize(kind, values.view(np.uint8))
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_every_type_a_header_may_name_is_covered() -> None:
    assert {kind.name for kind in TENSOR_TYPES.values()} == {*HALVES, "F32", "F16", "BF16"}
