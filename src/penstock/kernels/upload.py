"""Copy host arrays to the device without synchronizing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def upload(values: np.ndarray[Any, Any] | Sequence[Any], device: torch.device, dtype: Any = None) -> Tensor:
    """A tensor of `values`. A copy from pageable memory waits for all work queued on the device; one from pinned memory
    is queued behind it. Torch keeps the pinned memory until the copy is done."""
    host = torch.from_numpy(np.asarray(values, dtype=dtype))
    return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host.to(device)


def put(place: Tensor, values: np.ndarray[Any, Any]) -> None:
    """Copy `values` into an existing tensor of their shape."""
    host = torch.from_numpy(values)
    place.copy_(host.pin_memory() if place.is_cuda else host, non_blocking=True)
