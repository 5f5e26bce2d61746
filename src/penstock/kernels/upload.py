"""Host arrays to the device, without waiting for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def upload(values: np.ndarray[Any, Any] | Sequence[Any], device: torch.device, dtype: Any = None) -> Tensor:
    """A tensor of `values`. A copy from ordinary memory waits until the device has done all it was told before; one
    from pinned memory takes its turn. Torch keeps the pinned piece until the copy has been made."""
    host = torch.from_numpy(np.asarray(values, dtype=dtype))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def put(place: Tensor, values: np.ndarray[Any, Any]) -> None:
    """The same into a tensor that is there, of their shape."""
    host = torch.from_numpy(values)
    place.copy_(host.pin_memory() if place.is_cuda else host, non_blocking=True)
