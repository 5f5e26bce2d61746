"""Weights: a matrix, and the form it is stored in.

A form is a memory layout that some operations read and others do not. An operation asks for the form it computes with,
and any other raises `UnsupportedForm`: there are no implicit conversions. A new form is a member of `Form`, an accessor
here, a `DeviceForm` in `model.weights.form` that makes it, and a product that reads it. A shard of tensor parallelism
is a weight of its own, which `model.weights.place` has sliced.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, cast

from penstock.kernels.arrays import Dtype
from penstock.kernels.cpu.packed import PackedMatrix

if TYPE_CHECKING:
    from torch import Tensor

    from penstock.kernels.coded import CodedMatrix


class Form(StrEnum):
    DENSE = "dense"  # one tensor [rows, cols] of a float type
    ONEDNN = "onednn"  # one opaque tensor in oneDNN's blocked layout, see `kernels.reference.linear`
    PACKED = "packed"  # panels of the native CPU kernels: floats, or codes with a scale per block (GGUF, int8, int4)
    CODED = "coded"  # codes with a scale per group, on torch devices: see `kernels.coded`


class UnsupportedForm(TypeError):
    """An operation was given a weight in a form that it does not read."""


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """The matrix [rows, cols] of a product, or an embedding table with a row per token."""

    form: Form
    shape: tuple[int, int]
    dtype: Dtype  # that products with it compute in
    num_bytes: int
    _stored: Tensor | PackedMatrix | CodedMatrix

    @classmethod
    def from_dense(cls, tensor: Tensor) -> Weight:
        return cls(Form.DENSE, (tensor.shape[0], tensor.shape[1]), _dtype(tensor), tensor.nbytes, tensor)

    @classmethod
    def from_onednn(cls, tensor: Tensor) -> Weight:
        """`tensor` is what `kernels.reference.linear.to_onednn` gave."""
        return cls(Form.ONEDNN, (tensor.shape[0], tensor.shape[1]), _dtype(tensor), tensor.nbytes, tensor)

    @classmethod
    def from_packed(cls, matrix: PackedMatrix) -> Weight:
        return cls(Form.PACKED, matrix.shape, "float32", matrix.num_bytes, matrix)

    @classmethod
    def from_coded(cls, matrix: CodedMatrix, dtype: Dtype) -> Weight:
        return cls(Form.CODED, matrix.shape, dtype, matrix.num_bytes, matrix)

    @property
    def is_quantized(self) -> bool:
        return self.form is Form.CODED or (self.form is Form.PACKED and self.packed.reads_quantized)

    @property
    def dense(self) -> Tensor:
        """[rows, cols]"""
        if self.form is not Form.DENSE:
            raise self._form_error(Form.DENSE)
        return cast("Tensor", self._stored)

    @property
    def onednn(self) -> Tensor:
        if self.form is not Form.ONEDNN:
            raise self._form_error(Form.ONEDNN)
        return cast("Tensor", self._stored)

    @property
    def packed(self) -> PackedMatrix:
        if self.form is not Form.PACKED:
            raise self._form_error(Form.PACKED)
        return cast(PackedMatrix, self._stored)

    @property
    def coded(self) -> CodedMatrix:
        if self.form is not Form.CODED:
            raise self._form_error(Form.CODED)
        return cast("CodedMatrix", self._stored)

    def _form_error(self, form: Form) -> UnsupportedForm:
        return UnsupportedForm(f"this operation reads {form} weights, and was given a {self.form} one")


def _dtype(tensor: Tensor) -> Dtype:
    return cast(Dtype, str(tensor.dtype).removeprefix("torch."))
