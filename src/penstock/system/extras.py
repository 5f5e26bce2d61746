"""Optional packages: whether they are installed, and the error where one is needed."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec

from penstock.errors import InvalidSetting

INSTALL_TORCH = f"{shlex.quote(sys.executable)} -m pip install 'penstock[torch]'"


def has_torch() -> bool:
    """Whether torch is installed. Does not import it."""
    try:
        return find_spec("torch") is not None
    except ImportError:
        return False


def require_torch(what: str, param: str | None = None) -> None:
    """Raises InvalidSetting for `what`, which the setting `param` asks for, unless torch is installed."""
    if not has_torch():
        raise InvalidSetting(f"{what} needs torch, which is not installed: {INSTALL_TORCH}", param=param)
