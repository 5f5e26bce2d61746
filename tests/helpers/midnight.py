"""Budgets, reports and meters by day begin anew at midnight UTC."""

from __future__ import annotations

import time

MARGIN_S = 60.0  # more than a test takes


def keep_off_midnight() -> None:
    """Wait for the next day where it is about to begin: a test would spend on one and look at the other."""
    left_s = 86_400 - time.time() % 86_400
    if left_s < MARGIN_S:
        time.sleep(left_s)
