"""Tensor parallelism: one model split over several devices by columns and rows of its matrices."""

from __future__ import annotations

from penstock.capacity.device import Device
from penstock.capacity.shape import Shape

DEGREES = (1, 2, 4, 8, 16)


def problem(shape: Shape, device: Device, degree: int) -> str | None:
    """Why this degree is impossible; None if it is possible."""
    if degree == 1:
        return None
    if shape.heads % degree:
        return f"{shape.heads} heads cannot be split evenly over {degree} devices"
    if shape.kv_heads % degree and degree % shape.kv_heads:
        return f"{shape.kv_heads} KV heads can be neither split nor repeated evenly over {degree} devices"
    if shape.intermediate % degree:
        return f"the MLP's {shape.intermediate} columns cannot be split evenly over {degree} devices"
    if device.link_bytes_s is None:
        return f"{device.label} has no link to another (link_bytes_s)"
    return None
