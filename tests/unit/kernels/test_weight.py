"""A weight gives what it stores to those that read its form, and to nobody else."""

from __future__ import annotations

import pytest
import torch

from helpers.packed_samples import random_matrix
from penstock.kernels.coded import Code, Coding, encode
from penstock.kernels.cpu.packed import Kind
from penstock.kernels.reference import linear
from penstock.kernels.reference.dense import to_dense
from penstock.kernels.weight import Form, UnsupportedForm, Weight

TENSOR = torch.randn(32, 64, generator=torch.Generator().manual_seed(0))


def made(form: Form) -> Weight:
    match form:
        case Form.DENSE:
            return Weight.from_dense(TENSOR)
        case Form.ONEDNN:
            return Weight.from_onednn(linear.to_onednn(TENSOR))
        case Form.PACKED:
            return Weight.from_packed(random_matrix((Kind.U8, Kind.F32), (16, 16), 64))
        case Form.CODED:
            codes = torch.arange(32 * 64, dtype=torch.uint8).view(32, 64) & 15
            coding = Coding(Code.U4, 32, torch.float16)
            return Weight.from_coded(encode(coding, codes, torch.ones(32, 2)), "float32")


@pytest.mark.parametrize("form", Form)
def test_only_its_own_form_is_read(form: Form) -> None:
    weight = made(form)
    assert (weight.form, weight.shape, weight.dtype) == (form, (32, 64), "float32")
    assert to_dense(weight).shape == (32, 64)
    getattr(weight, form.value)
    for other in Form:
        if other is not form:
            with pytest.raises(UnsupportedForm, match=f"reads {other} weights, and was given a {form} one"):
                getattr(weight, other.value)


def test_what_it_stores() -> None:
    assert made(Form.DENSE).dense is TENSOR
    assert made(Form.DENSE).num_bytes == 4 * 32 * 64
    assert to_dense(made(Form.ONEDNN)).equal(TENSOR)
    packed = made(Form.PACKED)
    assert to_dense(packed).equal(torch.from_numpy(packed.packed.unpack()))
    assert packed.num_bytes == 16 * 64 + 2 * 2 * 16 + 4 * 16 * 64  # codes, scales of blocks of 32, floats
    coded = made(Form.CODED)
    assert to_dense(coded)[0, :16].tolist() == list(range(-8, 8))
    assert coded.num_bytes == 32 * 64 // 2 * 2 + 2 * 4 * 32  # filled up to 128 columns, scales of groups of 32
