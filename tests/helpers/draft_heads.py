"""Tiny random draft heads in the published checkpoint formats.

folder = draft_heads.eagle1(tmp_path / "head")
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from helpers.model_specs import small_spec
from penstock.kernels.arrays import Array
from penstock.store.spec import ModelSpec, Rope

HIDDEN, FFN, HEADS, KV_HEADS, HEAD, VOCAB, LAYERS = 32, 48, 4, 2, 8, 96, 8
CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": FFN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "num_hidden_layers": 1,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
}
Tensors = dict[str, Array]


def target_spec(**changes: Any) -> ModelSpec:
    """Of the model that the heads draft for."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_layers": LAYERS,
        "num_heads": HEADS,
        "num_kv_heads": KV_HEADS,
        "head_dim": HEAD,
        "context": 128,
        "rope": Rope(dim=HEAD),
        "attention_scale": HEAD**-0.5,
    }
    return small_spec(**(sizes | changes))


class Drawn:
    """Random tensors that are far from trivial."""

    def __init__(self, seed: int = 0) -> None:
        self._random = np.random.default_rng(seed)

    def matrix(self, rows: int, columns: int) -> Array:
        return (self._random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def vector(self, size: int, around: float = 0.0) -> Array:
        return (around + 0.2 * self._random.standard_normal(size)).astype(np.float32)

    def layer(self, prefix: str, *, input_size: int = HIDDEN, norms: tuple[str, ...], bias: bool = False) -> Tensors:
        q, kv = HEADS * HEAD, KV_HEADS * HEAD
        shapes = {
            "self_attn.q_proj": (q, input_size),
            "self_attn.k_proj": (kv, input_size),
            "self_attn.v_proj": (kv, input_size),
            "self_attn.o_proj": (HIDDEN, q),
            "mlp.gate_proj": (FFN, HIDDEN),
            "mlp.up_proj": (FFN, HIDDEN),
            "mlp.down_proj": (HIDDEN, FFN),
        }
        tensors = {f"{prefix}{name}.weight": self.matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"{prefix}{name}.weight": self.vector(HIDDEN, 1.0) for name in norms}
        if bias:
            names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            tensors |= {f"{prefix}{name}.bias": self.vector(shapes[name][0]) for name in names}
        return tensors


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def eagle1(folder: Path, *, change: Tensors | None = None, without: tuple[str, ...] = (), **config: Any) -> Path:
    drawn = Drawn(1)
    tensors = {"fc.weight": drawn.matrix(HIDDEN, 2 * HIDDEN), "fc.bias": drawn.vector(HIDDEN)}
    tensors |= drawn.layer("layers.0.", norms=("post_attention_layernorm",))
    tensors["embed_tokens.weight"] = drawn.matrix(VOCAB, HIDDEN)
    return write(folder, CONFIG | config, _without(tensors | (change or {}), without))


def eagle3(folder: Path, *, change: Tensors | None = None, without: tuple[str, ...] = (), **config: Any) -> Path:
    """Drafts every third token of the vocabulary."""
    drawn, drafted = Drawn(3), VOCAB // 3
    tensors = {"fc.weight": drawn.matrix(HIDDEN, 3 * HIDDEN), "norm.weight": drawn.vector(HIDDEN, 1.0)}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    tensors |= drawn.layer("midlayer.", input_size=2 * HIDDEN, norms=norms)
    tensors["lm_head.weight"] = drawn.matrix(drafted, HIDDEN)
    tensors["d2t"] = 2 * np.arange(drafted)
    tensors["t2d"] = np.arange(VOCAB) % 3 == 0
    named = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": drafted}
    return write(folder, CONFIG | named | config, _without(tensors | (change or {}), without))


def medusa(folder: Path, *, change: Tensors | None = None, without: tuple[str, ...] = (), **config: Any) -> Path:
    """Three heads of two blocks."""
    drawn = Drawn(5)
    tensors: Tensors = {}
    for head in range(3):
        for block in range(2):
            tensors[f"{head}.{block}.linear.weight"] = drawn.matrix(HIDDEN, HIDDEN)
            tensors[f"{head}.{block}.linear.bias"] = drawn.vector(HIDDEN)
        tensors[f"{head}.2.weight"] = drawn.matrix(VOCAB, HIDDEN)
    named = {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "some/model"}
    return write(folder, named | config, _without(tensors | (change or {}), without))


def _without(tensors: Tensors, names: tuple[str, ...]) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name not in names}
