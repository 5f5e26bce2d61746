"""Browser flags and the error check of the UI tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import penstock

DIST = Path(penstock.__file__).parent / "ui_dist"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",  # containers have a small /dev/shm
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class PageErrors:
    """Console errors and requests to other origins, collected over all pages of a test."""

    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()

    def assert_none(self) -> None:
        errors = [error for error in self.errors if not any(part in error for part in self.allowed)]
        assert not errors
        assert not self.foreign
