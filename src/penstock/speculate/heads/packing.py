"""Parameters of heads in the layout of the native kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from penstock.kernels.arrays import Array
from penstock.kernels.cpu.arena import Arena
from penstock.kernels.cpu.packed import PackedMatrix
from penstock.kernels.interface import Activation, Linear, Norm, as_tensor
from penstock.kernels.weight import Weight
from penstock.model.weights.pack import Quantization, pack_floats, pack_quantized
from penstock.speculate.heads.weights import Projection

if TYPE_CHECKING:
    from torch import Tensor


class Packer:
    """Of one head."""

    def __init__(self, eps: float, quantize: Quantization | None) -> None:
        """`eps` of its norms; `quantize`: None keeps floats."""
        self._eps, self._quantize, self._arena = eps, quantize, Arena()

    def matrix(self, values: Array) -> Weight:
        """[rows, cols]"""
        quantize = self._quantize
        made = pack_quantized(values, quantize, self._arena) if quantize else pack_floats(values, "F32", self._arena)
        return Weight.from_packed(PackedMatrix([made], values.shape[1]))

    def linear(self, *parts: Projection, norm: Array | None = None, gate: Activation | None = None) -> Linear:
        """Several projections of the same input become one product."""
        weight = self.matrix(np.concatenate([part.weight for part in parts]))
        bias = None
        if any(part.bias is not None for part in parts):
            zeros = [np.zeros(len(part.weight), np.float32) for part in parts]
            biases = [zero if part.bias is None else part.bias for zero, part in zip(zeros, parts, strict=True)]
            bias = self.bias(np.concatenate(biases))
        return Linear(weight, bias, None if norm is None else self.norm(norm), gate)

    def norm(self, weight: Array) -> Norm:
        return Norm(self.vector(weight), self._eps)

    def vector(self, values: Array) -> Tensor:
        """Of any shape, in float32."""
        return as_tensor(values)

    def bias(self, values: Array) -> Tensor:
        return as_tensor(values)

    def rows_of(self, weight: Weight, rows: Array) -> Weight:
        """Those of a weight of the target."""
        return self.matrix(weight.packed.unpack()[rows])


def columns(projection: Projection, begin: int, end: int) -> Projection:
    """Of a part of its inputs. The first part has the bias."""
    return Projection(projection.weight[:, begin:end], projection.bias if begin == 0 else None)


def output_head(own: Array | None, shared: Weight, token_ids: Array | None, packer: Packer) -> Weight:
    """What logits are computed with: the head's `own`, or the target's, cut to the tokens that are drafted."""
    if own is not None:
        return packer.matrix(own)
    return shared if token_ids is None else packer.rows_of(shared, token_ids)
