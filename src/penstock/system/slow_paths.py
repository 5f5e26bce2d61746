"""Notices about fast paths that this version of a library does not offer.

Modules that reach into a library's internals (`*_internals.py`, `http/uvicorn_adapter.py`) test for each feature they
use, not for a version. Where one is missing they take a slow path that computes the same, and say so once.
"""

from __future__ import annotations

import logging
from functools import cache

logger = logging.getLogger(__name__)


@cache
def warn_slow_path(library: str, feature: str, consequence: str) -> None:
    """One warning per process and feature."""
    logger.warning("this version of %s has no %s as Penstock knows it: %s", library, feature, consequence)
