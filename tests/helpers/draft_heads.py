"""Tiny random draft heads in the published checkpoint formats.

folder = draft_heads.eagle1(tmp_path / "head")
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors.numpy import load_file, save_file

from helpers import tiny_models
from helpers.model_specs import small_spec
from penstock.kernels.arrays import Array
from penstock.store.spec import ModelSpec, Rope

HIDDEN, FFN, HEADS, KV_HEADS, HEAD, VOCAB, LAYERS = 32, 48, 4, 2, 8, 96, 8
Tensors = dict[str, Array]


class Sizes(NamedTuple):
    """Of a head and its target."""

    hidden: int = HIDDEN
    ffn: int = FFN
    heads: int = HEADS
    kv_heads: int = KV_HEADS
    head: int = HEAD
    vocab: int = VOCAB

    @property
    def config(self) -> dict[str, Any]:
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": self.hidden,
            "intermediate_size": self.ffn,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "num_hidden_layers": 1,
            "vocab_size": self.vocab,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-5,
            "rope_theta": 10_000.0,
        }


SMALL = Sizes()
OF_TINY_MODELS = Sizes(64, 96, 4, 2, 16, tiny_models.VOCAB)
CONFIG = SMALL.config


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

    def __init__(self, seed: int = 0, sizes: Sizes = SMALL) -> None:
        self._random, self._sizes = np.random.default_rng(seed), sizes

    def matrix(self, rows: int, columns: int) -> Array:
        return (self._random.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)

    def vector(self, size: int, around: float = 0.0) -> Array:
        return (around + 0.2 * self._random.standard_normal(size)).astype(np.float32)

    def layer(self, prefix: str, *, inputs: int = 1, norms: tuple[str, ...], bias: bool = False) -> Tensors:
        """`inputs`: of the size of the hidden states, side by side."""
        hidden, ffn, heads, kv_heads, head, _ = self._sizes
        q, kv, input_size = heads * head, kv_heads * head, inputs * hidden
        shapes = {
            "self_attn.q_proj": (q, input_size),
            "self_attn.k_proj": (kv, input_size),
            "self_attn.v_proj": (kv, input_size),
            "self_attn.o_proj": (hidden, q),
            "mlp.gate_proj": (ffn, hidden),
            "mlp.up_proj": (ffn, hidden),
            "mlp.down_proj": (hidden, ffn),
        }
        tensors = {f"{prefix}{name}.weight": self.matrix(*shape) for name, shape in shapes.items()}
        tensors |= {f"{prefix}{name}.weight": self.vector(hidden, 1.0) for name in norms}
        if bias:
            names = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            tensors |= {f"{prefix}{name}.bias": self.vector(shapes[name][0]) for name in names}
        return tensors


def write(folder: Path, config: dict[str, Any], tensors: Tensors) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: np.ascontiguousarray(tensor) for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def eagle1(
    folder: Path, *, sizes: Sizes = SMALL, change: Tensors | None = None, without: tuple[str, ...] = (), **config: Any
) -> Path:
    drawn, hidden = Drawn(1, sizes), sizes.hidden
    tensors = {"fc.weight": drawn.matrix(hidden, 2 * hidden), "fc.bias": drawn.vector(hidden)}
    tensors |= drawn.layer("layers.0.", norms=("post_attention_layernorm",))
    tensors["embed_tokens.weight"] = drawn.matrix(sizes.vocab, hidden)
    return write(folder, sizes.config | config, _without(tensors | (change or {}), without))


def eagle3(
    folder: Path, *, sizes: Sizes = SMALL, change: Tensors | None = None, without: tuple[str, ...] = (), **config: Any
) -> Path:
    """Drafts every third token of the vocabulary."""
    drawn, hidden, drafted = Drawn(3, sizes), sizes.hidden, sizes.vocab // 3
    tensors = {"fc.weight": drawn.matrix(hidden, 3 * hidden), "norm.weight": drawn.vector(hidden, 1.0)}
    norms = ("input_layernorm", "hidden_norm", "post_attention_layernorm")
    tensors |= drawn.layer("midlayer.", inputs=2, norms=norms)
    tensors["lm_head.weight"] = drawn.matrix(drafted, hidden)
    tensors["d2t"] = 2 * np.arange(drafted)
    tensors["t2d"] = np.arange(sizes.vocab) % 3 == 0
    named = {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": drafted}
    return write(folder, sizes.config | named | config, _without(tensors | (change or {}), without))


def medusa(
    folder: Path, *, sizes: Sizes = SMALL, change: Tensors | None = None, without: tuple[str, ...] = (), **config: Any
) -> Path:
    """Three heads of two blocks."""
    drawn, hidden = Drawn(5), sizes.hidden
    tensors: Tensors = {}
    for head in range(3):
        for block in range(2):
            tensors[f"{head}.{block}.linear.weight"] = drawn.matrix(hidden, hidden)
            tensors[f"{head}.{block}.linear.bias"] = drawn.vector(hidden)
        tensors[f"{head}.2.weight"] = drawn.matrix(sizes.vocab, hidden)
    named = {"medusa_num_heads": 3, "medusa_num_layers": 2, "base_model_name_or_path": "some/model"}
    return write(folder, named | config, _without(tensors | (change or {}), without))


def mtp_tensors(prefix: str, sizes: Sizes = SMALL) -> Tensors:
    """Of one MTP layer."""
    drawn, hidden = Drawn(7, sizes), sizes.hidden
    tensors = drawn.layer(prefix, norms=("input_layernorm", "post_attention_layernorm"), bias=True)
    norms = ("token_layernorm", "hidden_layernorm", "final_layernorm")
    tensors |= {f"{prefix}{name}.weight": drawn.vector(hidden, 1.0) for name in norms}
    tensors[f"{prefix}input_proj.weight"] = drawn.matrix(hidden, 2 * hidden)
    return tensors


def with_mtp(folder: Path) -> Path:
    """A tiny MiMo: a Qwen2 with an MTP layer in its checkpoint."""
    tiny_models.make("qwen2", folder)
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | mtp_tensors("model.mtp_layers.0.", OF_TINY_MODELS), folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text())
    named = {"architectures": ["MiMoForCausalLM"], "model_type": "mimo", "num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(config | named))
    return folder


def _without(tensors: Tensors, names: tuple[str, ...]) -> Tensors:
    return {name: tensor for name, tensor in tensors.items() if name not in names}


PROPOSERS = ("draft", "eagle1", "eagle3", "medusa", "mtp")


def speculate_setting(proposer: str, folder: Path) -> str:
    """The value of `speculate`, with a random head or draft model in `folder` for tiny models."""
    if proposer == "mtp":
        return "mtp"
    if proposer == "draft":
        return f"draft:{tiny_models.make('llama', folder, num_hidden_layers=1)}"
    make = {"eagle1": eagle1, "eagle3": eagle3, "medusa": medusa}[proposer]
    options: dict[str, Any] = {} if proposer != "eagle3" else {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return f"{proposer.rstrip('13')}:{make(folder, sizes=OF_TINY_MODELS, **options)}"
