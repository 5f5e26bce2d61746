"""Weights of any form as one tensor [rows, cols]: exact and slow, for references and tests."""

from __future__ import annotations

import torch
from torch import Tensor

from penstock.kernels.reference.coded import dequantize
from penstock.kernels.weight import Form, Weight


def to_dense(weight: Weight) -> Tensor:
    match weight.form:
        case Form.DENSE:
            return weight.dense
        case Form.ONEDNN:
            return weight.onednn.to_dense()
        case Form.PACKED:
            return torch.from_numpy(weight.packed.unpack())
        case Form.CODED:
            return dequantize(weight.coded).to(getattr(torch, weight.dtype))
