"""The device side of a step: plans in, results out.

runner.ModelRunner    with operations, on a GPU or in plain torch
native.NativeRunner   with a native program, on a CPU
orders.Orders         what requests want made of a step, for both

StepPlan ─► slots (what changed) ─► inputs (Batch) ─► model ─► logits ─► sample ─► StepResult
              ▲                                         │                  │           ▲
              │                                         └──► pooling ──────┼───────────┘
              └─────────────── drawn tokens, without the host ─────────────┘
"""

from penstock.forward.memory import CacheSize, allocate_pages, size_cache
from penstock.forward.runner import ModelRunner

__all__ = ["CacheSize", "ModelRunner", "allocate_pages", "size_cache"]
