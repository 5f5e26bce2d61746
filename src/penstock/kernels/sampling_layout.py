"""The sampling parameters of one row, as every draw kernel reads them: one description for three languages.

FIELDS generates the C struct (`c_header`, which build_native.py writes and compiles), the numpy dtype of the rows that
Python fills (`dtype`), and the word offsets that Triton kernels load by (`word`). A field with a `parameter` says how
its value follows from a request; a parameter that is off has a value that changes nothing. `kernels.cpu.library`
compares SIGNATURE with the one that the native library was compiled with.

Plain Python: the build runs this file before anything is installed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from penstock.flow import SamplingParams

BYTES = {"int64": 8, "int32": 4, "float32": 4}
C_TYPES = {"int64": "int64_t", "int32": "int32_t", "float32": "float"}
INF = math.inf
TINY = 2.0**-126  # the smallest normal float32


class Parameter(NamedTuple):
    """Of a request."""

    name: str
    value: Callable[[SamplingParams, int], float]  # of the request and the size of the vocabulary
    off: float  # this value changes nothing


class Field(NamedTuple):
    name: str
    type: str  # a key of BYTES
    meaning: str
    parameter: Parameter | None = None


def _parameter(
    name: str, type: str, meaning: str, parameter: str, off: float, value: Callable[[SamplingParams, int], float]
) -> Field:
    return Field(name, type, meaning, Parameter(parameter, value, off))


TEMPERATURE = _parameter(
    "temperature",
    "float32",
    "0: greedy",
    "temperature",
    1.0,
    lambda p, _: 0.0 if p.greedy else max(p.temperature, TINY),
)
# In the order in which they act.
FILTERS = (
    _parameter("top_k", "int32", "0: off", "top_k", 0, lambda p, vocab: p.top_k if p.top_k < vocab else 0),
    _parameter("top_p", "float32", "inf: off", "top_p", INF, lambda p, _: max(p.top_p, TINY) if p.top_p < 1.0 else INF),
    _parameter("log_min_p", "float32", "-inf: off", "min_p", -INF, lambda p, _: math.log(p.min_p) if p.min_p else -INF),
    _parameter(
        "typical_p",
        "float32",
        "inf: off; CUDA leaves it to torch",
        "typical_p",
        INF,
        lambda p, _: p.typical_p if p.typical_p < 1.0 else INF,
    ),
)
PENALTIES = (
    _parameter("repetition", "float32", "1: off", "repetition_penalty", 1.0, lambda p, _: p.repetition_penalty),
    _parameter("presence", "float32", "0: off", "presence_penalty", 0.0, lambda p, _: p.presence_penalty),
    _parameter("frequency", "float32", "0: off", "frequency_penalty", 0.0, lambda p, _: p.frequency_penalty),
)
FIELDS = (
    Field("stream", "int64", "of noise: penstock.sample.noise_stream"),
    Field("slot", "int32", "where the drawn token goes; CUDA kernels take it from the step's rows"),
    Field("position", "int32", "likewise; the noise depends on it"),
    Field("prompt_length", "int32", "in tokens; penalties tell the prompt from the output by it"),
    TEMPERATURE,
    *FILTERS,
    *PENALTIES,
    Field("num_biases", "int32", "entries of logit_bias"),
    Field("masked", "int32", "1: some tokens must not be drawn"),
    Field("mask_row", "int32", "of the table of masks: the slot, or a row of a draft; CUDA kernels take the slot"),
)


def values(params: SamplingParams, vocab_size: int) -> dict[str, float]:
    """Of the fields that follow from a request's parameters."""
    fields = ((field.name, field.parameter) for field in FIELDS)
    return {name: parameter.value(params, vocab_size) for name, parameter in fields if parameter is not None}


def enabled(fields: tuple[Field, ...], of: Mapping[str, float]) -> bool:
    """Whether any of these parameters is on, by the values of a request."""
    return any(field.parameter is not None and of[field.name] != field.parameter.off for field in fields)


def without(fields: tuple[Field, ...], of: Mapping[str, float]) -> dict[str, float]:
    """The same values with these parameters off."""
    return {**of, **{field.name: field.parameter.off for field in fields if field.parameter is not None}}


def row(of: Mapping[str, float]) -> tuple[float, ...]:
    """One row of an array of `dtype`."""
    return tuple(of[field.name] for field in FIELDS)


def _offsets() -> dict[str, int]:
    """In bytes; each field is aligned to its size, as C compilers do it."""
    offsets, end = {}, 0
    for field in FIELDS:
        size = BYTES[field.type]
        offsets[field.name] = -(-end // size) * size
        end = offsets[field.name] + size
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
    members = "\n".join(f"    {C_TYPES[field.type]} {field.name};  // {field.meaning}" for field in FIELDS)
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
