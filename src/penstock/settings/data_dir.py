"""The folder of what a server stores: files and batches, and the database of keys and usage."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

DATABASE = "tenants.db"  # of keys and usage, unless `database` names another


def data_folder(data_dir: str | None, environ: Mapping[str, str] = os.environ) -> Path:
    """`data_dir` is the setting."""
    if data_dir:
        return Path(data_dir).expanduser().absolute()
    if (xdg := environ.get("XDG_DATA_HOME")) and Path(xdg).is_absolute():  # the standard says to ignore others
        return Path(xdg) / "penstock"
    return Path("~/.local/share/penstock").expanduser()
