"""Penstock: the whole LLM inference pipeline in one readable package.

LLM                                  a model, loaded and ready: generate, chat, embed, stream
SamplingParams, Constraint           how an answer is drawn, and what it must look like
Tool, ToolUse                        what a model may ask to have called
Completion, Chunk, Embedding         what comes back; FinishReason says why an answer ended
PenstockError                        the root of all errors (`penstock.errors`)
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from penstock.errors import PenstockError
from penstock.flow import Chunk, Completion, Constraint, Embedding, FinishReason, SamplingParams, Tool, ToolUse

if TYPE_CHECKING:
    from penstock.offline import LLM

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "Constraint",
    "Embedding",
    "FinishReason",
    "PenstockError",
    "SamplingParams",
    "Tool",
    "ToolUse",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name == "LLM":  # loaded when asked for: `import penstock` stays cheap
        return importlib.import_module("penstock.offline").LLM
    raise AttributeError(f"module 'penstock' has no attribute {name!r}")
