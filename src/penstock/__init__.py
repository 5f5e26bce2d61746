"""Penstock: the whole LLM inference pipeline in one readable package."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.flow.constraint import Constraint
from penstock.flow.params import SamplingParams
from penstock.flow.tools import Tool, ToolUse

if TYPE_CHECKING:
    from penstock.offline import LLM

__version__ = "0.1.0"
__all__ = ["LLM", "Constraint", "SamplingParams", "Tool", "ToolUse", "__version__"]


def __getattr__(name: str) -> Any:
    if name == "LLM":  # loaded when asked for: `import penstock` stays cheap
        return importlib.import_module("penstock.offline").LLM
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
