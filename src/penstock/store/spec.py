"""ModelSpec: everything there is to know about a model except its weights.

Made from a Hugging Face `config.json` or from GGUF metadata, written beside the weights when a model is pulled. The
frontend reads it without opening the weights; the engine builds the model from it alone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.store.hf_quantization import Quantization
from penstock.store.kv_types import KvTypes


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary position embedding: base frequencies, and how they are stretched to longer contexts."""

    theta: float = 10_000.0
    dim: int  # of the head's dimensions, the first `dim` are rotated
    kind: Literal["default", "linear", "llama3", "yarn", "longrope"] = "default"
    factor: float = 1.0
    original_context: int = 0  # what the model was first trained for (llama3, yarn, longrope)
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn
    beta_slow: float = 1.0  # yarn
    attention_factor: float = 1.0  # cos and sin are multiplied by it (yarn, longrope)
    short_factors: tuple[float, ...] = ()  # longrope, [dim / 2]
    long_factors: tuple[float, ...] = ()  # longrope, [dim / 2]; also llama3 factors given as a GGUF tensor


class CacheGroup(msgspec.Struct, frozen=True):
    """Layers whose KV blocks live and die together, because they look back equally far."""

    window: int  # tokens a query sees, itself included; 0: all
    layers: tuple[int, ...]

    def most_blocks(self, context: int, step_tokens: int, block_size: int) -> int:
        """Blocks that one sequence of `context` tokens holds at most, computed `step_tokens` at a time."""
        whole = -(-context // block_size)
        if not self.window:
            return whole
        # The span a step touches, from the first position its first query sees, at its worst alignment.
        return min(whole, 1 + -(-(self.window - 2 + step_tokens) // block_size))


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    architecture: str  # a name in model.registry: "llama", "mistral", "qwen2", "qwen3", "gemma3", "phi3"
    name: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int  # longest sequence the model was made for
    norm_eps: float
    rope: Rope
    local_rope: Rope | None = None  # of the layers with a window, where it differs (Gemma 3)
    windows: tuple[int, ...] = ()  # [num_layers] or empty: sliding window per layer, 0 for full attention
    tied: bool = False  # the output projection is the embedding table
    attention_bias: bool = False  # q, k and v projections have a bias
    output_bias: bool = False  # the attention's output projection has one
    mlp_bias: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    attention_scale: float  # multiplies q·k
    attention_softcap: float = 0.0  # 0: off
    logit_softcap: float = 0.0  # 0: off
    embedding_scale: float = 1.0
    dtype: str = "float32"  # what the checkpoint was made in
    weights: str = ""  # for people: "Q4_1", "bfloat16"
    quantization: Quantization | None = None  # of a Hugging Face checkpoint
    matrix_types: dict[str, int] = {}  # of a GGUF file: its types -> parameters of layers' matrices that are in each
    table_types: dict[str, int] = {}  # the same of the embedding table and the output projection
    end_tokens: tuple[int, ...] = ()

    def block_bytes(self, group: CacheGroup, block_size: int, types: KvTypes) -> int:
        """Of one KV block of `block_size` tokens: keys and values of all layers of the group, with their scales."""
        return len(group.layers) * block_size * self.num_kv_heads * types.head_bytes(self.head_dim)

    def window(self, layer: int) -> int:
        return self.windows[layer] if self.windows else 0

    @property
    def cache_groups(self) -> tuple[CacheGroup, ...]:
        """The layers by how far they look back: first those with the longest view (full attention is longest)."""
        views = {self.window(layer) for layer in range(self.num_layers)}
        return tuple(
            CacheGroup(view, tuple(layer for layer in range(self.num_layers) if self.window(layer) == view))
            for view in sorted(views, key=lambda window: (window != 0, -window))
        )
