"""The sampling parameters of one row, as every draw kernel reads them: one description for three languages.

FIELDS generates the C struct (`c_header`, which build_native.py writes and compiles), the numpy dtype of the rows that
Python fills (`dtype`), and the word offsets that Triton kernels load by (`word`). A filter that is off has a value that
changes nothing. `kernels.cpu.library` compares SIGNATURE with the one that the native library was compiled with.

Plain Python: the build runs this file before anything is installed.
"""

from __future__ import annotations

from typing import Any, NamedTuple

BYTES = {"int64": 8, "int32": 4, "float32": 4}
C_TYPES = {"int64": "int64_t", "int32": "int32_t", "float32": "float"}


class Field(NamedTuple):
    name: str
    type: str  # a key of BYTES
    meaning: str


FIELDS = (
    Field("stream", "int64", "of noise: penstock.sample.noise.stream"),
    Field("slot", "int32", "where the drawn token goes; CUDA kernels take it from the step's rows"),
    Field("position", "int32", "likewise; the noise depends on it"),
    Field("prompt_length", "int32", "in tokens; penalties tell the prompt from the output by it"),
    Field("temperature", "float32", "0: greedy"),
    Field("top_k", "int32", "0: off"),
    Field("top_p", "float32", "inf: off"),
    Field("log_min_p", "float32", "-inf: off"),
    Field("typical_p", "float32", "inf: off; CUDA leaves it to torch"),
    Field("repetition", "float32", "1: off"),
    Field("presence", "float32", "0: off"),
    Field("frequency", "float32", "0: off"),
    Field("num_biases", "int32", "entries of logit_bias; read by CUDA kernels only"),
    Field("masked", "int32", "1: some tokens must not be drawn; read by CUDA kernels only"),
)


def _offsets() -> dict[str, int]:
    """In bytes; each field is aligned to its size, as C compilers do it."""
    offsets, end = {}, 0
    for name, type, _ in FIELDS:
        offsets[name] = -(-end // BYTES[type]) * BYTES[type]
        end = offsets[name] + BYTES[type]
    return offsets


OFFSETS = _offsets()
_ALIGNMENT = max(BYTES[field.type] for field in FIELDS)
SIZE = -(-(OFFSETS[FIELDS[-1].name] + BYTES[FIELDS[-1].type]) // _ALIGNMENT) * _ALIGNMENT  # bytes
SIGNATURE = " ".join(f"{field.name}:{field.type}@{OFFSETS[field.name]}" for field in FIELDS) + f" = {SIZE}"


def dtype() -> Any:
    """The argument of `numpy.dtype`."""
    return {
        "names": [field.name for field in FIELDS],
        "formats": [field.type for field in FIELDS],
        "offsets": [OFFSETS[field.name] for field in FIELDS],
        "itemsize": SIZE,
    }


def word(name: str) -> int:
    """Offset of a field in 32-bit words."""
    return OFFSETS[name] // 4


def c_header() -> str:
    members = "\n".join(f"    {C_TYPES[type]} {name};  // {meaning}" for name, type, meaning in FIELDS)
    offsets = "\n".join(f"static_assert(offsetof(DrawParams, {name}) == {at});" for name, at in OFFSETS.items())
    return f"""// Generated from kernels/sampling_layout.py by build_native.py: do not edit.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock {{

struct DrawParams {{
{members}
}};
static_assert(sizeof(DrawParams) == {SIZE});
{offsets}

constexpr char DRAW_PARAMS_SIGNATURE[] = "{SIGNATURE}";

}}  // namespace penstock
"""
