"""Parameters of heads as tensors on a device."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from penstock.kernels.arrays import Array
from penstock.kernels.coded import take_rows
from penstock.kernels.weight import Form, Weight
from penstock.model.weights.dense_form import Allocate
from penstock.speculate.heads.packing import Packer


class DensePacker(Packer):
    """Of one head."""

    def __init__(self, eps: float, dtype: torch.dtype, device: torch.device, allocate: Allocate | None = None) -> None:
        super().__init__(eps, None)
        self._dtype, self._device = dtype, device
        self._allocate: Callable[..., Tensor] = allocate or (
            lambda shape, dtype: torch.empty(shape, dtype=dtype, device=device)
        )

    def matrix(self, values: Array) -> Weight:
        tensor = self._allocate(values.shape, self._dtype)
        return Weight.from_dense(tensor.copy_(torch.from_numpy(values)))

    def vector(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self._device, torch.float32)

    def bias(self, values: Array) -> Tensor:
        return torch.from_numpy(values).to(self._device, self._dtype)

    def rows_of(self, weight: Weight, rows: Array) -> Weight:
        taken = torch.from_numpy(rows).to(self._device)
        if weight.form is Form.CODED:
            return Weight.from_coded(take_rows(weight.coded, taken), weight.dtype)
        return Weight.from_dense(weight.dense[taken])
