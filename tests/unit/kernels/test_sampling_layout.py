"""One description of sampling parameters for C, numpy and Triton."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np
import pytest

from helpers.native_paged_model import needs_library
from penstock.errors import PenstockError
from penstock.flow import Admit, Constraint, SamplingParams
from penstock.kernels import sampling_layout
from penstock.kernels.cpu import library
from penstock.kernels.cpu.draw_table import DRAW_PARAMS
from penstock.sample.noise_stream import noise_stream
from penstock.sample.slot_request import SlotRequest


def test_the_dtype_lies_as_a_c_compiler_lays_it_out() -> None:
    types = {"int64": ctypes.c_int64, "int32": ctypes.c_int32, "float32": ctypes.c_float}

    class Struct(ctypes.Structure):
        _fields_ = tuple((field.name, types[field.type]) for field in sampling_layout.FIELDS)

    assert ctypes.sizeof(Struct) == DRAW_PARAMS.itemsize == sampling_layout.SIZE
    for name in sampling_layout.OFFSETS:
        assert getattr(Struct, name).offset == DRAW_PARAMS.fields[name][1] == 4 * sampling_layout.word(name)


def test_the_header_asserts_size_and_offsets() -> None:
    header = sampling_layout.c_header()
    assert f"static_assert(sizeof(DrawParams) == {sampling_layout.SIZE});" in header
    for field in sampling_layout.FIELDS:
        name = field.name
        assert f" {name};  // {field.meaning}\n" in header
        assert f"static_assert(offsetof(DrawParams, {name}) == {sampling_layout.OFFSETS[name]});" in header


def test_triton_loads_by_the_same_offsets() -> None:
    pytest.importorskip("triton", reason="triton is not installed")
    from penstock.kernels.cuda import sampling_params

    assert sampling_params.WORDS.value * 4 == DRAW_PARAMS.itemsize
    constants = {field.name: getattr(sampling_params, field.name.upper(), None) for field in sampling_layout.FIELDS}
    read = {name: constant.value for name, constant in constants.items() if constant is not None}
    assert len(read) > 8
    assert read == {name: sampling_layout.word(name) for name in read}


def test_a_request_fills_every_field() -> None:
    params = SamplingParams(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=1.0,
        typical_p=0.75,
        repetition_penalty=1.5,
        presence_penalty=0.125,
        frequency_penalty=2.0,
        logit_bias={3: 1.0, 4: 2.0},
        banned_tokens=(1,),
    )
    request = SlotRequest.of(Admit(6, [1] * 9, 9, params, 1, 0, (), []), 100)
    (row,) = np.array([sampling_layout.row(request.draw_params)], dtype=DRAW_PARAMS)
    assert {name: row[name].item() for name in DRAW_PARAMS.names or ()} == {
        "stream": noise_stream(1, 0),
        "slot": 6,
        "position": 0,
        "prompt_length": 9,
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.25,
        "log_min_p": 0.0,
        "typical_p": 0.75,
        "repetition": 1.5,
        "presence": 0.125,
        "frequency": 2.0,
        "num_biases": 2,
        "masked": 1,
        "mask_row": 6,
    }


@pytest.mark.parametrize(
    ("params", "masked"),
    [
        (SamplingParams(), 0),
        (SamplingParams(logit_bias={3: 1.0}), 0),
        (SamplingParams(allowed_tokens=(3,)), 1),
        (SamplingParams(constraint=Constraint("regex", "[0-9]+")), 1),
    ],
)
def test_which_requests_have_a_mask(params: SamplingParams, masked: int) -> None:
    request = SlotRequest.of(Admit(0, [1], 1, params, 1, 0, (2,), []), 100)
    assert request.draw_params["masked"] == masked


@pytest.fixture
def _unloaded() -> Iterator[None]:
    library.load.cache_clear()
    yield
    library.load.cache_clear()


@needs_library
@pytest.mark.usefixtures("_unloaded")
def test_a_library_with_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_layout, "SIGNATURE", "stream:int64@0 = 8")
    with pytest.raises(PenstockError, match=r"was built from other sources.*Build it again"):
        library.load()
