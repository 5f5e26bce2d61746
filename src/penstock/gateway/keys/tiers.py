"""Priority tiers: a smaller number goes first."""

from __future__ import annotations

TIERS = {"interactive": 0, "standard": 1, "bulk": 2}
DEFAULT_TIER = "standard"
