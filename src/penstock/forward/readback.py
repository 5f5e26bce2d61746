"""Asynchronous copies from the device to the host."""

from __future__ import annotations

import torch
from torch import Tensor


class Readback:
    """A copy of `values`, queued on the current stream behind the kernels that compute them. Reading it waits for the
    copy, not for kernels launched since."""

    def __init__(self, values: Tensor) -> None:
        self._host, self._copied = values, None
        if values.is_cuda:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._host.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record()

    def tolist(self) -> list[int]:
        if self._copied is not None:
            self._copied.synchronize()
        values: list[int] = self._host.tolist()
        return values
