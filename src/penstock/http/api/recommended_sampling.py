"""Sampling parameters that a model recommends (its generation_config)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merge_recommended(recommended: Mapping[str, float | int], requested: Mapping[str, Any]) -> dict[str, Any]:
    """The requested parameters, and the recommended ones for those that are None."""
    return {**recommended, **{name: value for name, value in requested.items() if value is not None}}
