"""What tests that drive a browser share."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import penstock

DIST = Path(penstock.__file__).parent / "ui_dist"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-dev-shm-usage",  # of which containers have little
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@dataclass
class Watched:
    """What must not happen on any page: see `clean`."""

    errors: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    allowed: tuple[str, ...] = ()

    def clean(self) -> None:
        errors = [error for error in self.errors if not any(part in error for part in self.allowed)]
        assert not errors
        assert not self.foreign
