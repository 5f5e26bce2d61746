"""Specs of models that need no weights, or random ones."""

from __future__ import annotations

from typing import Any

from penstock.store.spec import ModelSpec, Rope


def small_spec(**fields: Any) -> ModelSpec:
    """Two Llama layers with four heads of 16, which share two KV heads, unless `fields` say otherwise."""
    head_dim = fields.get("head_dim", 16)
    small: dict[str, Any] = {
        "architecture": "llama",
        "name": "tiny",
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": head_dim,
        "context": 128,
        "norm_eps": 1e-6,
        "rope": Rope(dim=head_dim),
        "attention_scale": 0.25,
    }
    return ModelSpec(**(small | fields))
