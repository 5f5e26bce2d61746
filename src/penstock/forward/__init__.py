"""The device side of a step: plans in, results out.

StepPlan ─► slots (what changed) ─► inputs (Batch) ─► model ─► logits ─► sample ─► StepResult
              ▲                                         │                  │           ▲
              │                                         └──► pooling ──────┼───────────┘
              └─────────────── drawn tokens, without the host ─────────────┘
"""

from penstock.forward.memory import CacheSize, allocate_pages, size_cache
from penstock.forward.runner import ModelRunner

__all__ = ["CacheSize", "ModelRunner", "allocate_pages", "size_cache"]
