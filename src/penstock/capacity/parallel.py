"""Tensor parallelism: one model split over several devices by columns and rows of its matrices."""

from __future__ import annotations

from penstock.capacity.device import Device
from penstock.capacity.shape import Shape
from penstock.store.tensor_parallel import split_problem

DEGREES = (1, 2, 4, 8, 16)


def problem(shape: Shape, device: Device, degree: int) -> str | None:
    """Why this degree is impossible; None if it is possible."""
    if degree == 1:
        return None
    if found := split_problem(shape.heads, shape.kv_heads, shape.intermediate, degree):
        return found
    return None if device.link_bytes_s is not None else f"{device.label} has no link to another (link_bytes_s)"
