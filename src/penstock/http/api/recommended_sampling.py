"""Sampling as the makers of a model recommend it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_recommended(recommended: Mapping[str, float | int], asked: Mapping[str, Any]) -> dict[str, Any]:
    """What the client gives counts; then what the model's makers recommend."""
    return {**recommended, **{name: value for name, value in asked.items() if value is not None}}
