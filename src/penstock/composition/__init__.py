"""The composition root: the only package that knows all the others, on both sides of the border.

Each function imports the stages that it connects, so a command loads only what it uses, and when it uses it: a server
starts its engine process before it imports the web stack.
"""

from __future__ import annotations

from penstock.composition.engine_side import engine, engine_loop, follow_rank_0, replica_set
from penstock.composition.model_side import local_model, model, pipeline, upstream_model
from penstock.composition.server_side import (
    accounting,
    autoscaler,
    batch_data,
    database,
    gateway,
    journal,
    key_directory,
    key_manager,
    limiter,
    response_stores,
    safety,
    server,
)

__all__ = [
    "accounting",
    "autoscaler",
    "batch_data",
    "database",
    "engine",
    "engine_loop",
    "follow_rank_0",
    "gateway",
    "journal",
    "key_directory",
    "key_manager",
    "limiter",
    "local_model",
    "model",
    "pipeline",
    "replica_set",
    "response_stores",
    "safety",
    "server",
    "upstream_model",
]
