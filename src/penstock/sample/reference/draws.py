"""The result of sampling a step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from penstock.sample.reports import Reports


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws(Reports):
    """Drawn tokens and what comes with them. On the device."""

    tokens: Tensor  # [rows] int64
